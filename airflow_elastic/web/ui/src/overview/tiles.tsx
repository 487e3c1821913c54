// The numbers of this moment, each with what it means beside it.
import type { ReactNode } from "react";
import { number } from "../api/numbers.ts";
import type { EarlyStop, Overview, Scaling } from "../api/types.ts";
import { count, grouped, measure, percent, rate } from "../format/numbers.ts";
import { useServerNow } from "../parts/now.ts";
import { ago, duration, roughly } from "../format/times.ts";

export function Tiles({ overview }: { overview: Overview }) {
  const { status, goodput, checkpoint } = overview;
  const now = useServerNow();
  const ended = status.ended_at !== null;
  const loss = number(status.loss);
  const risk = checkpoint.at_risk;
  const wall = (status.ended_at ?? now) - status.created_at;
  const short = status.workers < status.target_workers && !ended;
  const idle = ["pausing", "submitting"].includes(status.state);
  return (
    <dl className="el-tiles">
      <Tile
        name="Step loss"
        value={measure(loss)}
        alarm={loss !== null && !Number.isFinite(loss)}
        more={status.epoch ? `epoch ${status.epoch}` : null}
      />
      <Tile
        name="Samples per second"
        value={rate(status.samples.per_second)}
        more={`${ended || idle ? "at the end; " : ""}${grouped(status.samples.seen)} seen`}
      />
      <Tile
        name="Workers"
        value={grouped(status.workers)}
        alarm={short}
        more={idle ? "none at work now" : short ? `of ${grouped(status.target_workers)} wanted` : count(status.world_size, "rank")}
      />
      <Tile name="Goodput" value={percent(goodput.share)} more={`of ${duration(wall)}`} />
      <Tile
        name="Restarts"
        value={grouped(status.restarts.used)}
        alarm={status.restarts.used >= status.restarts.limit && status.restarts.used > 0}
        more={`of ${grouped(status.restarts.limit)} allowed`}
      />
      <Tile
        name="Newest checkpoint"
        value={checkpoint.newest ? (ended ? `step ${grouped(checkpoint.newest.step)}` : ago(now - checkpoint.newest.at)) : "none"}
        alarm={!checkpoint.newest && !ended && status.step > 0}
        more={
          risk && !ended && status.step > 0
            ? `a failure now loses ${count(risk.steps, "step")}, ${roughly(risk.seconds)}`
            : `${grouped(status.checkpoints.committed)} committed`
        }
      />
      {status.scaling && <ScalingTile {...status.scaling} />}
      {overview.early_stop && <EarlyStopTile {...overview.early_stop} />}
    </dl>
  );
}

/** The newest decision of the scaling policy, and why. */
function ScalingTile({ workers, wanted, reason, steps }: Scaling) {
  const value = workers === wanted ? count(workers, "worker") : `${grouped(workers)}, wants ${grouped(wanted)}`;
  return <Tile name="Scaling policy" value={value} more={reason ?? `no decision yet, ${count(steps, "scale step")} so far`} />;
}

/** How near the run is to its early stop. */
function EarlyStopTile({ metric, patience, since, best, step }: EarlyStop) {
  const more = best === null ? `no report of ${metric} yet` : `reports since the best ${metric}, ${measure(best)} at step ${grouped(step)}`;
  return <Tile name="Early stop" value={`${grouped(since)} of ${grouped(patience)}`} more={more} />;
}

interface TileProps {
  name: string;
  value: string;
  more: ReactNode;
  alarm?: boolean;
}

function Tile({ name, value, more, alarm = false }: TileProps) {
  return (
    <div className={alarm ? "el-tile el-tile-alarm" : "el-tile"}>
      <dt>{name}</dt>
      <dd>{value}</dd>
      <dd className="el-tile-more">{more}</dd>
    </div>
  );
}
