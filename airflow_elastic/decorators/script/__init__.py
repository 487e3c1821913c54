"""The script in a task's function: its body with all that it uses, as one file that workers run."""

from airflow_elastic.decorators.script.extract import Script, script_of

__all__ = ["Script", "script_of"]
