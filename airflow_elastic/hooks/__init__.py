"""Hooks: credentials and clients from Airflow connections."""

from __future__ import annotations

from airflow_elastic.hooks.elastic import ElasticHook

__all__ = ["ElasticHook"]
