// What the server sends. Times are epoch seconds. A number that JSON cannot hold comes as a text; see numbers.ts.

export type Health = "ok" | "warning" | "error" | "idle";
export type Level = "info" | "warning" | "error";

export interface Config {
  version: string;
  mode: "airflow" | "standalone";
  roots: string[];
  poll_seconds: number;
}

export interface RunRow {
  path: string;
  name: string;
  dag_id?: string;
  run_id?: string;
  task_id?: string;
  map_index?: number;
  uri: string;
  state: string;
  healthy: Health;
  headline: string;
  step: number | null;
  total_steps: number | null;
  progress: number | null;
  saved_step?: number | null;
  eta_seconds: number | null;
  world_size: number | null;
  workers: number | null;
  target_workers: number | null;
  goodput: number | null;
  restarts: { used: number; limit: number | null };
  created_at: number | null;
  ended_at: number | null;
  updated_at: number | null;
  loss: number | null;
  sparkline: (number | null)[];
  engine: string | null;
}

export interface Totals {
  runs: number;
  training: number;
  waiting: number;
  failed: number;
  succeeded: number;
  workers: number;
  goodput: number | null;
}

export interface RunList {
  at: number;
  total: number;
  runs: RunRow[];
  totals: Totals;
}

/** The fields of the status document that the pages show. */
export interface Status {
  at: number;
  run: { uri: string; name: string; engine: string; launcher: string };
  state: string;
  outcome: string | null;
  reason: string | null;
  created_at: number;
  ended_at: number | null;
  owner: string | null;
  workers: number;
  target_workers: number;
  world_size: number;
  step: number;
  total_steps: number | null;
  epoch: number;
  loss: number | null;
  metrics: Record<string, number | null>;
  samples: { seen: number; per_second: number };
  restarts: { used: number; limit: number };
  scaling?: Scaling | null;
  proposals?: Proposal[];
  checkpoints: {
    committed: number;
    unsaved?: { step: number; worker: string; reason: string } | null;
    left_out?: { step: number; reason: string } | null;
    unpruned?: { step: number; reason: string } | null;
    bad_copy?: { step: number; worker: string; reason: string } | null;
  };
  attempts: { number: number; failure?: Failure | null; last_step?: number }[];
  phases?: PhaseRow[];
  /** While started ranks have made no step. */
  starting?: { since: number } | null;
  ranks?: RankNews[];
  excluded_machines?: string[];
  goodput: number;
}

/** What a rank reported last: its step, and when it made that. */
export interface RankNews {
  rank: number;
  step: number;
  at: number;
}

export interface PhaseRow {
  name: string | null;
  steps: number;
  /** Steps of the run before it. */
  from_step?: number;
  complete: boolean;
  results?: Record<string, unknown>;
}

export interface Failure {
  kind: string;
  reason: string;
  exit_code?: number | null;
  worker?: string | null;
  rank?: number | null;
  error?: string | null;
  traceback?: string | null;
}

export interface Eta {
  seconds: number;
  low: number;
  high: number;
}

export interface TimeRow {
  name: string;
  label: string;
  meaning: string;
  seconds: number;
}

/** An early stop: the run ends when `metric` has not improved in `patience` reports. */
export interface EarlyStop {
  metric: string;
  patience: number;
  /** Reports since the best value. */
  since: number;
  best: number | null;
  step: number | null;
}

/** A value that past runs proposed for a field of the specification, with its evidence. */
export interface Proposal {
  field: string;
  value: unknown;
  /** The value that was given; absent if none was. */
  now?: unknown;
  reason: string;
  /** On how many runs it rests. */
  runs: number;
  figures?: Record<string, number | null>;
  /** Whether the run has taken it. */
  taken?: boolean;
}

/** The newest decision of a scaling policy. */
export interface Scaling {
  /** When; null before the first one. */
  at: number | null;
  workers: number;
  /** The number that its rules want, before pauses and other guards. */
  wanted: number;
  rule: string | null;
  reason: string | null;
  /** How many steps it has made. */
  steps: number;
}

export interface AttemptSpan {
  number: number;
  from: number;
  until: number | null;
  cause: string | null;
  workers: number;
  headline: string;
  from_step?: number | null;
  last_step?: number | null;
  recovery?: Recovery | null;
  generations: { from: number; workers: number; world_size: number }[];
}

/** From the last step of the attempt before to the first step of this one; the parts in their order. */
export interface Recovery {
  seconds: number;
  parts: { name: string; words: string; seconds: number }[];
}

/** Ranks that hold the others up, and what that costs; numbers that are not known are null. */
export interface SlowRanks {
  ranks: { rank: number; worker: string | null }[];
  forward_seconds: number | null;
  others_seconds: number | null;
  step_seconds: number | null;
  lost_seconds: number | null;
}

export type MarkKind =
  | "attempt"
  | "failure"
  | "scale"
  | "checkpoint"
  | "straggler"
  | "waiting"
  | "request"
  | "phase"
  | "end";

export interface Mark {
  at: number;
  kind: MarkKind;
  level: Level;
  text: string;
}

export interface Condition {
  kind: "waiting" | "straggler" | "trouble";
  since: number;
  until: number | null;
  text: string;
}

export type ActionName = "scale" | "save" | "stop" | "pin" | "unpin" | "resume" | "exclude";

export interface Action {
  name: ActionName;
  allowed: boolean;
  why_not: string | null;
  cost: string;
}

export interface Overview {
  at: number;
  status: Status;
  healthy: Health;
  headline: string;
  progress: {
    fraction: number | null;
    step: number;
    total_steps: number | null;
    steps_per_second: number | null;
    eta: Eta | null;
  };
  goodput: { share: number | null; rows: TimeRow[] };
  checkpoint: {
    newest: { step: number; at: number; age_seconds: number } | null;
    at_risk: { steps: number; seconds: number } | null;
  };
  slow?: SlowRanks | null;
  /** The weights that it began with, in words; null: from scratch. */
  started_from?: string | null;
  early_stop?: EarlyStop | null;
  attempts: AttemptSpan[];
  marks: Mark[];
  conditions: Condition[];
  permissions: { edit: boolean; user: string | null };
  actions: Action[];
  links: Record<string, string | null>;
}

export interface Series {
  t: number[];
  mean: (number | null)[];
  min: (number | null)[];
  max: (number | null)[];
}

export interface HistoryDocument {
  at: number;
  from: number | null;
  until: number | null;
  names: string[];
  series: Record<string, Series>;
}

export interface Worker {
  name: string;
  index: number;
  state: string;
  machine: string | null;
  ranks: number[];
  step: number | null;
  step_seconds: number | null;
  relative: number | null;
  /** The same of the forward pass, for which no rank waits for another: it tells who is slow. */
  relative_forward?: number | null;
  forward_seconds?: number | null;
  cpu: number | null;
  memory_bytes: number | null;
  gpu_utilisation: number | null;
  gpu_memory_bytes: number | null;
  last_word_at: number | null;
  last_word_seconds: number | null;
  straggler: boolean;
  waiting: string | null;
  reason: string | null;
}

export interface WorkersDocument {
  at: number;
  median_step_seconds: number | null;
  units: { unit: string | number; workers: Worker[] }[];
}

export interface HeatMap {
  /** What was measured: whole steps, or forward passes, in which no rank waits for another. */
  of?: "step" | "forward";
  t: number[];
  ranks: number[];
  rows: (number | null)[][];
  p50: number | null;
  p99: number | null;
}

export interface Evidence {
  error?: string | null;
  traceback?: string | null;
  exit_code?: number | null;
  signal?: string | number | null;
  output?: string | null;
  cluster?: unknown;
  stacks?: unknown;
}

export interface LogPlace {
  attempt: number;
  rank: number;
  generation?: number | null;
}

export interface EventRow {
  seq: number;
  at: number;
  kind: string;
  level: Level;
  text: string;
  attempt: number | null;
  evidence: Evidence | null;
  log: LogPlace | null;
}

export interface EventPage {
  total: number;
  next: number;
  events: EventRow[];
}

export interface LogIndex {
  attempts: { number: number; ranks: { rank: number; generation: number; bytes: number; failed: boolean }[] }[];
  default: { attempt: number; rank: number } | null;
}

export interface LogText {
  offset: number;
  next: number;
  size: number;
  text: string;
  matches?: { offset: number; line: string }[];
}

export interface Checkpoint {
  step: number;
  at: number | null;
  age_seconds: number | null;
  bytes: number | null;
  tiers: string[];
  attempt: number | null;
  reason: string | null;
  metric: number | null;
  metrics: Record<string, number | null>;
  verified: boolean;
  verified_at: number | null;
  verified_by: string | null;
  pinned: { by: string | null; at: number | null } | null;
  used_by: string[];
  /** What was measured of it later. */
  evaluations?: { metrics: Record<string, number | null>; at: number; by: string }[];
  damaged: string | null;
}

export interface CheckpointList {
  checkpoints: Checkpoint[];
}
