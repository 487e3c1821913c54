"""What a run is: frozen dataclasses of the standard library, with their checks. No I/O, no clock."""
