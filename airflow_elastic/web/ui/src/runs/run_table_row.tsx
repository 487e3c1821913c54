// One run of the list.
import { memo } from "react";
import { Link } from "react-router-dom";
import { number, numbers } from "../api/numbers.ts";
import type { RunRow } from "../api/types.ts";
import { grouped, measure, percent } from "../format/numbers.ts";
import { duration } from "../format/times.ts";
import { StateBadge } from "../parts/badge.tsx";
import { Ago } from "../parts/moment.tsx";
import { pageOf } from "../run/where.ts";
import { Sparkline } from "./spark.tsx";

interface Props {
  run: RunRow;
  now: number;
  /** Where all runs are kept. */
  roots: readonly string[];
}

/** Where a run is kept, without what all have in common. */
function shortUri(uri: string, roots: readonly string[]): string {
  const root = roots.find((one) => uri.startsWith(one));
  return (root && uri.slice(root.length).replace(/^\//, "")) || uri;
}

function savedWords({ saved_step: saved }: RunRow): string {
  return saved ? `Saved up to step ${grouped(saved)}` : "Nothing is saved yet";
}

export const RunTableRow = memo(function RunTableRow({ run, now, roots }: Props) {
  const { progress, total_steps: total } = run;
  const safe = total && progress !== null ? Math.min((run.saved_step ?? 0) / total, progress) : 0;
  const where = [run.dag_id, run.task_id].filter(Boolean).join(".") || shortUri(run.uri, roots);
  return (
    <tr className={`el-health-${run.healthy}`}>
      <th scope="row">
        <Link to={pageOf(run)}>{run.name}</Link>
        <span className="el-sub">
          {where}
          {run.map_index !== undefined && run.map_index >= 0 && ` [${run.map_index}]`}
          {run.run_id && ` · ${run.run_id}`}
        </span>
      </th>
      <td data-name="State" className="el-run-state">
        <StateBadge state={run.state} />
        <span className="el-sub">{run.headline}</span>
      </td>
      <td data-name="Progress">
        <span className="el-run-progress">
          {progress !== null && (
            <span title={savedWords(run)} className={`el-bar el-bar-${run.ended_at === null ? "running" : run.state}`} aria-hidden="true">
              <span className="el-bar-reached" style={{ width: `${progress * 100}%` }} />
              <span className="el-bar-safe" style={{ width: `${safe * 100}%` }} />
            </span>
          )}
          <span className="el-sub">
            {grouped(run.step)}
            {total !== null && ` of ${grouped(total)}`}
            {progress !== null && ` · ${percent(progress)}`}
          </span>
        </span>
      </td>
      <td data-name="Loss">
        <span className="el-run-loss">
          <Sparkline values={numbers(run.sparkline)} label={`Loss of ${run.name}`} />
          {measure(number(run.loss))}
        </span>
      </td>
      <td data-name="Time left" className="el-num">{duration(run.eta_seconds)}</td>
      <td data-name="World size" className="el-num">
        {grouped(run.world_size)}
        {run.workers !== run.target_workers && run.ended_at === null && (
          <span className="el-sub el-text-warning">
            {grouped(run.workers)} of {grouped(run.target_workers)} workers
          </span>
        )}
      </td>
      <td data-name="Goodput" className="el-num">{percent(run.goodput)}</td>
      <td data-name="Restarts" className="el-num">
        {run.restarts.used} {run.restarts.limit !== null && <span className="el-muted">of {run.restarts.limit}</span>}
      </td>
      <td data-name="Last news" className="el-num"><Ago at={run.updated_at} now={now} /></td>
    </tr>
  );
});
