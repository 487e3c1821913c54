"""The documents of a checkpoint: manifest, index of its files, phases, records of samples.

`manifest` makes a checkpoint exist. `index` says which bytes are which entry. `resumed` has the facts that a script may
build its model by. Plain data, without I/O.
"""
