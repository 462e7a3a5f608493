"""`d2a bench`: memory, refusal and cost, measured against in-context reading and Doc-to-LoRA on official data.

Suites of samples are in `suites`, metrics in `metrics`, prompts and limits in `protocols`, what answers in `systems`,
the run over all of them in `run`, cost in `efficiency`, and what is printed and drawn in `report`.
"""
