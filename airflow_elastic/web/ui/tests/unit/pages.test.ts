import assert from "node:assert/strict";
import { test } from "node:test";
import { pause } from "../../src/api/loop.ts";
import type { Worker } from "../../src/api/types.ts";
import { quoted } from "../../src/format/shell.ts";
import { chosen, lastLine, rankOptions, stillFor } from "../../src/logs/choose.ts";
import { evidence, proposalWords } from "../../src/overview/proposal_words.ts";
import { slowWords } from "../../src/overview/slow_words.ts";
import { pageOf, runOf, viewLink, viewOf } from "../../src/run/where.ts";
import { nextSort } from "../../src/runs/sort.ts";
import { slow, unwell } from "../../src/workers/selection.ts";
import { columnsFor, heatColour, loudness, slowestRow } from "../../src/workers/heat_scale.ts";

test("a task instance leads to its run, whatever its ids are made of", () => {
  assert.equal(runOf({}), null);
  assert.equal(runOf({ dagId: "a/b", runId: "manual__2026-01-01T00:00:00+00:00", taskId: "t" }), "ti/a%2Fb/manual__2026-01-01T00%3A00%3A00%2B00%3A00/t/-1");
  const row = { path: "run/x", dag_id: "d g", run_id: "r+1", task_id: "g.t", map_index: 3 };
  assert.equal(pageOf(row), "/dags/d%20g/runs/r%2B1/tasks/g.t/mapped/3/plugin/training");
  assert.equal(pageOf({ path: "run/a_b-" }), "?run=run%2Fa_b-");
});

test("the link of a tab keeps the run and nothing of another tab", () => {
  const words = new URLSearchParams("run=run/x&view=logs&q=error&rank=3");
  assert.equal(viewLink(words, "overview"), "?run=run%2Fx");
  assert.equal(viewLink(words, "logs", { attempt: 2, rank: 5 }), "?run=run%2Fx&view=logs&attempt=2&rank=5");
  assert.equal(viewOf("nonsense"), "overview");
});

test("after failures the pause grows, up to a minute", () => {
  assert.deepEqual([0, 1, 2, 30].map((failures) => pause(3000, failures)), [3000, 6000, 12_000, 60_000]);
  assert.equal(pause(120_000, 3), 120_000);
});

test("the log of the rank that failed is shown first", () => {
  const rank = (number: number, failed = false) => ({ rank: number, generation: 1, bytes: 1, failed });
  const index = { attempts: [{ number: 1, ranks: [rank(0), rank(1, true)] }, { number: 2, ranks: [rank(0), rank(1)] }], default: { attempt: 2, rank: 1 } };
  assert.deepEqual(chosen(index, null, null), { attempt: 2, rank: 1 });
  assert.deepEqual(chosen(index, "1", null), { attempt: 1, rank: 1 });
  assert.deepEqual(chosen(index, "1", "0"), { attempt: 1, rank: 0 });
  assert.deepEqual(chosen(index, "9", "0"), { attempt: 2, rank: 1 });
  assert.equal(chosen({ attempts: [], default: null }, null, null), null);
  assert.deepEqual(rankOptions([rank(0), rank(1), rank(1, true)]).map(({ word }) => word), ["Rank 1, failed", "Rank 0"]);
});

test("a heading sorts by itself, and turns round when it does already", () => {
  assert.equal(nextSort("-updated", "goodput", true), "-goodput");
  assert.equal(nextSort("-goodput", "goodput", true), "goodput");
  assert.equal(nextSort("-updated", "name", false), "name");
  assert.equal(nextSort("-updated", "eta", true), "eta");
});

test("the median is quiet, and twice the median is as loud as it gets", () => {
  assert.deepEqual([0.5, 1, 1.5, 2, 9].map((seconds) => loudness(seconds, 1)), [0, 0, 0.5, 1, 1]);
  assert.equal(loudness(1, 0), 0);
  assert.deepEqual([0, 8, 256, 1024, 9999].map(columnsFor), [240, 240, 234, 60, 60]);
  assert.notDeepEqual(heatColour(0, true), heatColour(1, true));
  assert.deepEqual(slowestRow({ t: [1], ranks: [0, 1], rows: [[1], [1.9]], p50: 1, p99: 2 }), { row: 1, relative: 1.9 });
  assert.equal(slowestRow({ t: [1], ranks: [0], rows: [[null]], p50: 1, p99: 2 }), null);
});

test("who is slow, since when, and what it costs are one sentence each", () => {
  const slow = { ranks: [{ rank: 2, worker: "node-2" }], forward_seconds: 0.38, others_seconds: 0.06, step_seconds: 0.4, lost_seconds: 0.32 };
  assert.equal(
    slowWords(slow, 316, 1600).replaceAll("\u00a0", " "),
    "Rank 2 (node-2) has held all others up for 5 min 16 s. Its forward pass takes 380 ms, the others' 60 ms. " +
      "That costs at least 320 ms of each 400 ms step, 80 % of the time. " +
      "Without it, the rest would take about 5 min 20 s instead of 26 min 40 s.",
  );
  const unknown = { ranks: [1, 2, 3, 4].map((rank) => ({ rank, worker: null })), forward_seconds: null, others_seconds: null, step_seconds: null, lost_seconds: null };
  assert.equal(slowWords(unknown, null, null), "Ranks 1, 2, 3 and 1 more hold all others up.");
});

test("a command to copy is one that a shell reads as it is meant", () => {
  assert.equal(quoted("s3://runs/a-b_1.2"), "s3://runs/a-b_1.2");
  assert.equal(quoted("/mnt/it's mine; rm -rf $HOME"), "'/mnt/it'\\''s mine; rm -rf $HOME'");
});

test("the last line of a traceback is what to search for", () => {
  assert.equal(lastLine("Traceback\n  File\n\u001b[31mValueError: bad\u001b[0m\n\n"), "ValueError: bad");
  assert.equal(lastLine(null), "");
});

test("where nothing moves, the rank that is behind is looked at", () => {
  const ranks = [{ rank: 0, step: 41, at: 90 }, { rank: 1, step: 40, at: 95 }, { rank: 2, step: 41, at: 99 }, { rank: 3, step: 0, at: 0 }];
  assert.deepEqual(stillFor(ranks, 200), { seconds: 101, rank: 1 });
  assert.equal(stillFor([], 200), null);
});

test("a difference of a few milliseconds makes nobody slow", () => {
  const worker: Worker = {
    name: "node-0", index: 0, state: "running", machine: null, ranks: [0], step: 1, step_seconds: 0.02, relative: 1, forward_seconds: 0.006,
    relative_forward: 1.9, cpu: null, memory_bytes: null, gpu_utilisation: null, gpu_memory_bytes: null, last_word_at: 1, last_word_seconds: 0,
    straggler: false, waiting: null, reason: null,
  };
  assert.ok(!slow(worker) && !unwell(worker));
  assert.ok(slow({ ...worker, forward_seconds: 0.06 }));
  assert.ok(unwell({ ...worker, straggler: true }));
  assert.ok(slow({ ...worker, relative_forward: null, relative: 2, step_seconds: 0.5 }));
});

test("a proposal says what it would change, on how many runs it rests, and with which figures", () => {
  const one = { field: "workers.count", value: 6, now: 8, reason: "a step takes 0.41 s", runs: 1, figures: { step_seconds: 0.41, failures: 7 } };
  assert.equal(proposalWords(one), "workers.count: 6 instead of 8");
  assert.equal(proposalWords({ ...one, now: undefined, taken: true }), "workers.count: 6, taken");
  assert.equal(evidence(one), "1 run: a step takes 0.41 s (step seconds 0.4100, failures 7)");
  assert.equal(evidence({ ...one, runs: 5, figures: undefined }), "5 runs: a step takes 0.41 s");
});
