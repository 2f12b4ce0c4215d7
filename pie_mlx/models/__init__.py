"""Models: where they come from, how they are made ready, and the text side of them.

``registry`` names them, ``fetch`` brings them, ``gguf`` converts, ``load`` opens them; ``tokenizer``,
``chat``, ``stops`` and ``reasoning`` turn text into tokens and back. Nothing here holds KV.
"""
