"""Commands of the memory of past runs: `brain learn`, `show`, `propose`, `forget`; and `plan`, which asks it."""
