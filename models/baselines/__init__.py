"""What Doc-to-Atom is measured against: Doc-to-LoRA, and a document-independent LoRA that reads text in the prompt.

Each is an `nn.Module` that gives a `ComposedAdapter`, so that answering is the memory's own code. Training them is
`training.systems`.
"""
