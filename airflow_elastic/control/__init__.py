"""Carrying out what the core decides: the controller, and how a run is created, found and asked for things."""

from airflow_elastic.control.controller import Controller
from airflow_elastic.control.observer import Observer
from airflow_elastic.control.runs import Run, open_run, start_run

__all__ = ["Controller", "Observer", "Run", "open_run", "start_run"]
