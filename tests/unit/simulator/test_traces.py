"""Traces: readers of public formats, what they refuse, and what chance draws. The samples are of our own making."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.testing.simulator.traces import own
from airflow_elastic.testing.simulator.traces.read import read
from airflow_elastic.testing.simulator.traces.synthetic import Synthetic, synthetic
from airflow_elastic.testing.simulator.traces.trace import TraceError
from airflow_elastic.testing.simulator.traces.workloads import Elasticity

ONE_SERVER = [{"ip": "m1", "gpus": ["gpu0", "gpu1", "gpu2", "gpu3"]}]
TWO_SERVERS = [*ONE_SERVER, {"ip": "m2", "gpus": ["gpu0", "gpu1", "gpu2", "gpu3"]}]


def philly_job(name: str, *attempts: tuple[str | None, str | None], detail: object = ONE_SERVER) -> dict:
    told = [{"start_time": begin, "end_time": end, "detail": detail} for begin, end in attempts]
    return {
        "status": "Pass",
        "vc": "v1",
        "jobid": name,
        "attempts": told,
        "submitted_time": "2017-10-07 01:00:00",
        "user": "u1",
    }


PHILLY = [
    philly_job(
        "a", ("2017-10-07 01:10:00", "2017-10-07 01:20:00"), ("2017-10-07 01:30:00", "2017-10-07 02:30:00")
    ),
    philly_job("b", ("2017-10-07 03:00:00", "2017-10-07 04:00:00"), detail=TWO_SERVERS),
    philly_job("c"),
    philly_job("d", (None, None)),
]
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,u1,v1,8,32,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 19:41:01,3600,0
12,u2,v1,0,16,1,COMPLETED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
13,u1,v2,1,1,1,CANCELLED,2020-06-09 18:51:01,2020-06-09 18:51:28,2020-06-09 19:14:15,1367,27
"""
PAI_TASKS = """j1,worker,2.0,Terminated,1000.0,4600.0,600.0,29.3,50.0,V100
j1,ps,1.0,Terminated,1000.0,4600.0,600.0,29.3,,
j2,tensorflow,4.0,Failed,2000.0,2600.0,600.0,29.3,100.0,T4
j3,worker,1.0,Running,2000.0,,600.0,29.3,100.0,T4
"""
PAI_JOBS = "j1,i1,u1,Terminated,400.0,4600.0\nj2,i2,u2,Failed,2000.0,2600.0\n"


def trace_of(path: Path, text: str):
    path.write_text(text)
    return read(path, None, 1, Elasticity())


def took(job) -> float:
    """Seconds with the requested number of workers."""
    return job.steps * job.curve.step_seconds(job.workers)


def test_a_job_of_philly_has_the_time_of_all_its_attempts_and_the_gpus_of_all_its_servers(
    tmp_path: Path,
) -> None:
    trace = trace_of(tmp_path / "cluster_job_log", json.dumps(PHILLY))
    assert [(job.name, job.workers, round(took(job))) for job in trace.jobs] == [
        ("a", 4, 4200),
        ("b", 8, 3600),
    ]
    assert trace.capacity == 16
    assert trace.left_out == {"no attempt with a start and an end": 2}


def test_a_job_of_helios_has_its_gpus_and_its_duration(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "cluster_log.csv", HELIOS)
    told = [(job.name, job.submitted_at, job.workers, round(took(job))) for job in trace.jobs]
    assert told == [("11", 0.0, 8, 3600), ("13", 600.0, 1, 1367)]
    assert trace.left_out == {"no GPUs": 1}


@pytest.mark.parametrize(
    "header",
    [
        "",
        ",".join(["job_name,task_name,inst_num,status,start_time,end_time"])
        + ",plan_cpu,plan_mem,plan_gpu,gpu_type\n",
    ],
)
def test_a_job_of_pai_has_the_gpus_of_all_instances_in_whole_ones(tmp_path: Path, header: str) -> None:
    (tmp_path / "pai_job_table.csv").write_text(PAI_JOBS)
    trace = trace_of(tmp_path / "pai_task_table.csv", header + PAI_TASKS)
    told = [(job.name, job.submitted_at, job.workers, round(took(job))) for job in trace.jobs]
    assert told == [("j1", 0.0, 2, 3600), ("j2", 1600.0, 4, 600)]
    assert trace.left_out == {"task without GPUs": 1, "task without a start and an end": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            HELIOS.replace(",8,32", ",eight,32"),
            "line 2, field gpu_num: given 'eight'; allowed: a number from 0",
        ),
        (
            HELIOS.replace("2020-06-09 18:51:01", "09.06.2020"),
            "line 4, field submit_time: given '09.06.2020'",
        ),
        (HELIOS.replace("submit_time", "submitted"), "line 1: no field submit_time; there is job_id, user"),
        (HELIOS.replace("249,0", "249"), "line 3: 11 fields; the first line has 12"),
        (
            json.dumps([philly_job("a", ("soon", "later"))]),
            "job 1 (a), field attempts.0.end_time: given 'later'",
        ),
        (json.dumps([{"jobid": "a"}]), "job 1: no field submitted_time, attempts; there is jobid"),
        (json.dumps(PHILLY[2:]), "no job with GPUs and a duration (2 × no attempt with a start and an end)"),
        ("[", "it is no JSON"),
        ("hello", "its format is not recognised; name it by --format"),
        ('{"trace": "t", "nodes": 1, "gpus": 8}\n{"name": "a"}', "line 2: no field submitted_at, workers"),
        ('{"trace": "t", "nodes": 0, "gpus": 8}', "line 1, field nodes: given 0; allowed: a number from 1"),
    ],
)
def test_a_bad_trace_is_refused_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(TraceError) as error:
        trace_of(tmp_path / "trace", text)
    assert str(tmp_path / "trace") in str(error.value)
    assert told in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such file"):
        read(tmp_path / "nothing", None, 1, Elasticity())


def test_chance_draws_the_same_for_the_same_seed() -> None:
    what = Synthetic(runs=30)
    assert synthetic(what, 5) == synthetic(what, 5)
    assert synthetic(what, 5).jobs != synthetic(what, 6).jobs


def test_our_own_format_keeps_all_of_a_trace(tmp_path: Path) -> None:
    trace = synthetic(Synthetic(runs=30, fail_hours=20), 5)
    assert trace.outages
    read_again = trace_of(tmp_path / "t.jsonl", own.text(trace))
    shifted = trace.jobs[0].submitted_at
    assert shifted == 0.0
    assert replace(read_again, left_out={}) == replace(trace, left_out={})


def test_jobs_of_one_kind_are_alike_and_take_as_long_as_they_did() -> None:
    trace = synthetic(Synthetic(runs=200, kinds=3, nodes=8), 5)
    of_kind = [job for job in trace.jobs if job.kind == "model-0/8"]
    assert len(of_kind) > 3
    shapes = {round(job.curve.step_seconds(2) / job.curve.step_seconds(1), 6) for job in of_kind}
    assert len(shapes) == 1
    for job in trace.jobs:
        assert job.least <= job.workers <= job.most
        speeds = [job.curve.step_seconds(size) for size in range(job.least, job.most + 1)]
        assert job.curve.step_seconds(job.useful) == min(speeds)
