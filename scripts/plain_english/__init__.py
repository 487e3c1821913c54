"""A linter for the English of this project: `python -m scripts.plain_english`, which `make lint` runs.

In: the Markdown pages, and the docstrings, comments and texts of the Python files. Out: offences against `style.yaml`
as `file:line: rule: what to write instead`. `readability` measures how easy a page is to read. Nothing here knows the
product.
"""
