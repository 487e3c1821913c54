"""Elastic, fault-tolerant training as one task of an Airflow DAG."""

__version__ = "0.1.0"
