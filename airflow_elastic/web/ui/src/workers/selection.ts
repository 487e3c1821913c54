// Which workers are shown.
import type { Worker, WorkersDocument } from "../api/types.ts";

export type Only = "" | "unwell" | "waiting";
type Units = WorkersDocument["units"];

/** Steps that take so much longer than the median are out of line. */
const SLOW = 1.3;
/** Shorter forward passes say nothing, and less time than the second holds nobody up (seconds). */
const SHORTEST_FORWARD = 0.003;
const LEAST = 0.005;
/** A worker silent for so many seconds may be gone. */
export const SILENT_SECONDS = 30;

/** How long its steps take, in medians: of the forward pass where that is known, as ranks wait for each other after it. */
export function pace({ relative_forward: forward, forward_seconds: seconds, relative }: Worker): number | null {
  return forward != null && (seconds ?? 0) > SHORTEST_FORWARD ? forward : relative;
}

/** Whether its own part of a step takes so much longer than that of others that a person should look at it. */
export function slow(worker: Worker): boolean {
  const times = pace(worker);
  if (times === null || times < SLOW) return false;
  const seconds = times === worker.relative ? worker.step_seconds : worker.forward_seconds;
  return seconds == null || seconds - seconds / times >= LEAST;
}

/** Whether a worker that should speak has not for so long; one that has ended need not. */
export function silent({ state }: Worker, seconds: number | null): boolean {
  return (seconds ?? 0) > SILENT_SECONDS && !/succeeded|ended/.test(state);
}

export function unwell(worker: Worker): boolean {
  return (
    worker.straggler ||
    slow(worker) ||
    silent(worker, worker.last_word_seconds) ||
    /fail|gone|lost|dead/.test(worker.state)
  );
}

export function counts(workers: readonly Worker[]): { unwell: number; waiting: number } {
  return { unwell: workers.filter(unwell).length, waiting: workers.filter(({ waiting }) => waiting !== null).length };
}

/** The units with those workers of theirs that are wanted; a unit without any is left out. */
export function select(units: Units, only: Only, text: string): Units {
  const words = text.trim().toLowerCase();
  const wanted = (worker: Worker) =>
    (only === "" || (only === "unwell" ? unwell(worker) : worker.waiting !== null)) &&
    (!words || `${worker.name} ${worker.machine ?? ""} ${worker.state}`.toLowerCase().includes(words));
  return units
    .map(({ unit, workers }) => ({ unit, workers: workers.filter(wanted) }))
    .filter(({ workers }) => workers.length > 0);
}
