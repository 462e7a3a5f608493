"""Trained systems beside Doc-to-Atom, over the same batches: Doc-to-LoRA, the tuned reader and the blind control.

Each is an `nn.Module` whose parameters are what is trained; the frozen base is no part of them. `forward(batch,
phase)` returns `{loss: (sum, count)}`, to be weighed by `loss_weights`; `shared(batch, phase)` returns the counts
alone, before anything runs; both are sums over rows, so that parts of a batch add up to the whole. `answer(batch,
top_k=K)` returns the logits at the answers, which is all that `sensitivity` needs to tell whether a system uses what
it was given.
"""
