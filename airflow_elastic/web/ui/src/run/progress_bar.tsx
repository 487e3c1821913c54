// How far the training is. The full colour reaches to the newest checkpoint: what is after it is not safe yet.
import type { Overview } from "../api/types.ts";
import { grouped, percent, rate } from "../format/numbers.ts";
import { clock, duration, moment } from "../format/times.ts";
import { useZone } from "../format/zone.ts";

export function ProgressBar({ overview }: { overview: Overview }) {
  const zone = useZone();
  const { progress, status, checkpoint } = overview;
  const { fraction, step, total_steps: total, eta } = progress;
  const safeStep = checkpoint.newest?.step ?? 0;
  const safe = total ? Math.min(safeStep / total, fraction ?? 0) : 0;
  return (
    <div className="el-progress">
      {fraction !== null && (
        <div
          className={`el-bar el-bar-${status.outcome ?? "running"}`}
          role="progressbar"
          aria-label="Progress"
          aria-valuemin={0}
          aria-valuemax={100}
          aria-valuenow={Math.round(fraction * 1000) / 10}
        >
          <span className="el-bar-reached" style={{ width: `${fraction * 100}%` }} />
          <span
            className="el-bar-safe"
            style={{ width: `${safe * 100}%` }}
            title={`Saved up to step ${grouped(safeStep)}`}
          />
        </div>
      )}
      <div className="el-progress-words">
        <span>
          Step <b>{grouped(step)}</b>
          {total !== null && <> of {grouped(total)}</>}
          {fraction !== null && <span className="el-muted"> · {percent(fraction)}</span>}
          {progress.steps_per_second !== null && status.ended_at === null && (
            <span className="el-muted"> · {rate(progress.steps_per_second)} steps/s</span>
          )}
        </span>
        {eta && (
          <span title={`Between ${moment(status.at + eta.low, zone)} and ${moment(status.at + eta.high, zone)}`}>
            <b>{duration(eta.seconds)}</b> left
            <span className="el-muted">
              {" "}
              ({duration(eta.low)} to {duration(eta.high)}), done about{" "}
              {eta.seconds > 72_000 ? moment(status.at + eta.seconds, zone).slice(0, 16) : clock(status.at + eta.seconds, zone).slice(0, 5)}
            </span>
          </span>
        )}
        {status.ended_at !== null && (
          <span className="el-muted">
            Ended {moment(status.ended_at, zone)}, after {duration(status.ended_at - status.created_at)}
          </span>
        )}
      </div>
    </div>
  );
}
