// Which run a page shows, and the addresses of pages.
import type { RunRow } from "../api/types.ts";

/** What Airflow hands to the app of a task instance; all undefined on the page of all runs. */
export interface TaskInstanceWords {
  dagId?: string;
  runId?: string;
  taskId?: string;
  mapIndex?: string;
}

/** The path of the run in the API, or null on the page of all runs. */
export function runOf({ dagId, runId, taskId, mapIndex }: TaskInstanceWords): string | null {
  if (!dagId || !runId || !taskId) return null;
  return ["ti", dagId, runId, taskId, mapIndex ?? "-1"].map(encodeURIComponent).join("/");
}

/** Where a click on a run of the list leads. */
export function pageOf(row: Pick<RunRow, "path" | "dag_id" | "run_id" | "task_id" | "map_index">): string {
  if (row.dag_id === undefined || row.run_id === undefined || row.task_id === undefined) {
    return `?${new URLSearchParams({ run: row.path })}`;
  }
  const [dag, run, task] = [row.dag_id, row.run_id, row.task_id].map(encodeURIComponent);
  const mapped = row.map_index !== undefined && row.map_index >= 0 ? `/mapped/${row.map_index}` : "";
  return `/dags/${dag}/runs/${run}/tasks/${task}${mapped}/plugin/training`;
}

export const VIEWS = ["overview", "workers", "events", "logs", "checkpoints"] as const;
export type View = (typeof VIEWS)[number];

export function viewOf(word: string | null): View {
  return VIEWS.find((view) => view === word) ?? "overview";
}

/** The address of a tab of this run: what belongs to another tab is left out. */
export function viewLink(words: URLSearchParams, view: View, more: Record<string, string | number> = {}): string {
  const kept = new URLSearchParams();
  const run = words.get("run");
  if (run) kept.set("run", run);
  if (view !== "overview") kept.set("view", view);
  for (const [name, value] of Object.entries(more)) kept.set(name, String(value));
  return `?${kept}`;
}
