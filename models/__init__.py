"""The document memory: from documents to answers. Its Python API is `models.memory.DocumentMemory`.

Tensors are named after their logical dimensions, in capitals at the end of the name:

    B batch (questions)      L tokens of a prompt      T tokens seen so far
    N atoms of a document    U distinct atoms in a batch    C candidates    K selected atoms
    S micro-KV slots         D hidden size             E routing key     Z latent
    R rank                   I, O features in and out  H key/value heads     F head size     V vocabulary
"""
