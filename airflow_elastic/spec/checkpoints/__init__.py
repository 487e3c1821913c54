"""What a checkpoint's documents say: manifest, index of its files, phases, records of samples.

`manifest` is what makes a checkpoint exist, `index` says which bytes are which entry, `resumed` is what a script may
build its model by. Plain data, without I/O.
"""
