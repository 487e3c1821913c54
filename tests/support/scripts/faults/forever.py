"""Runs until it is ended, importing nothing heavy."""

import signal

while True:
    signal.pause()
