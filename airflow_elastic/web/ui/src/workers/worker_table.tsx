// A row for each worker, grouped by the unit of machines that it belongs to.
import { memo, useState } from "react";
import type { Action, Overview, Worker, WorkersDocument } from "../api/types.ts";
import { bytes, count, grouped, NOTHING, percent, ranges } from "../format/numbers.ts";
import { duration, roughly } from "../format/times.ts";
import { useServerNow } from "../parts/now.ts";
import { ConfirmAction } from "../run/confirm_action.tsx";
import { pace, silent, slow } from "./selection.ts";

const FEW_SECONDS = 10;

interface Props {
  units: WorkersDocument["units"];
  /** Whether units have several workers, and so a heading each. */
  grouped: boolean;
  path: string;
  overview: Overview;
}

export function WorkerTable({ units, grouped: headed, path, overview }: Props) {
  const now = useServerNow();
  const [machine, setMachine] = useState<string | null>(null);
  const [said, setSaid] = useState<string | null>(null);
  const exclude = overview.permissions.edit ? overview.actions.find(({ name }) => name === "exclude") : undefined;
  const gpus = units.some(({ workers }) => workers.some(({ gpu_utilisation: gpu }) => gpu !== null));
  return (
    <>
      {said && <p className="el-notice el-info" role="status">{said}</p>}
      <div className="el-scroll" tabIndex={0} role="region" aria-label="Workers">
        <table className="el-table el-workers">
          <thead>
            <tr>
              <th scope="col">Worker</th>
              <th scope="col">State</th>
              <th scope="col">Machine</th>
              <th scope="col" className="el-num">Ranks</th>
              <th scope="col" className="el-num">Step</th>
              <th scope="col" className="el-num">Step time</th>
              <th scope="col" className="el-num" title="No rank waits for another in it, so it shows who is slow">Forward pass</th>
              <th scope="col" title="The forward pass, or the step where that is not known, in medians of all ranks">Against the median</th>
              <th scope="col" className="el-num" >CPU cores</th>
              <th scope="col" className="el-num">Memory</th>
              {gpus && <th scope="col" className="el-num">GPU</th>}
              <th scope="col" className="el-num">Last heard</th>
            </tr>
          </thead>
          {units.map(({ unit, workers }) => (
            <tbody key={unit}>
              {headed && (
                <tr className="el-group">
                  <th scope="rowgroup" colSpan={gpus ? 12 : 11}>
                    Unit {unit} <span className="el-muted">{count(workers.length, "worker")}</span>
                  </th>
                </tr>
              )}
              {workers.map((worker) => (
                <Row key={worker.name} worker={worker} quiet={silence(worker, now)} gpus={gpus} exclude={exclude} onExclude={setMachine} />
              ))}
            </tbody>
          ))}
        </table>
      </div>
      {machine !== null && exclude && (
        <ConfirmAction
          path={path}
          action={exclude}
          machine={machine}
          onClose={() => setMachine(null)}
          onDone={(words) => {
            setMachine(null);
            setSaid(words);
          }}
        />
      )}
    </>
  );
}

/** Seconds since the last word. Few are none, so that rows which are well stay as they are. */
function silence({ last_word_at: at }: Worker, now: number): number | null {
  if (at === null) return null;
  const seconds = Math.floor(now - at);
  return seconds < FEW_SECONDS ? 0 : seconds;
}

interface RowProps {
  worker: Worker;
  quiet: number | null;
  gpus: boolean;
  exclude: Action | undefined;
  onExclude: (machine: string) => void;
}

const Row = memo(function Row({ worker, quiet, gpus, exclude, onExclude }: RowProps) {
  const { machine } = worker;
  const relative = pace(worker);
  const late = silent(worker, quiet);
  const why = worker.waiting ?? worker.reason;
  return (
    <tr className={worker.straggler ? "el-row-warning" : ""}>
      <th scope="row">{worker.name}</th>
      <td data-name="State">
        <span className={`el-dot el-dot-${tone(worker)}`} aria-hidden="true" /> {worker.straggler ? "straggler" : worker.state}
        {why && <span className="el-why">{why}</span>}
      </td>
      <td data-name="Machine">
        {machine ?? NOTHING}
        {machine && exclude && (
          <button
            type="button"
            className="el-link el-row-action"
            disabled={!exclude.allowed}
            title={exclude.allowed ? exclude.cost : (exclude.why_not ?? undefined)}
            onClick={() => onExclude(machine)}
          >
            exclude
          </button>
        )}
      </td>
      <td data-name="Ranks" className="el-num">{ranges(worker.ranks)}</td>
      <td data-name="Step" className="el-num">{grouped(worker.step)}</td>
      <td data-name="Step time" className="el-num">{duration(worker.step_seconds)}</td>
      <td data-name="Forward pass" className="el-num">{duration(worker.forward_seconds)}</td>
      <td data-name="Against the median">{relative === null ? NOTHING : <Deviation relative={relative} slow={worker.straggler || slow(worker)} />}</td>
      <td data-name="CPU cores" className="el-num">{worker.cpu === null ? NOTHING : worker.cpu.toFixed(worker.cpu < 0.95 ? 2 : 1)}</td>
      <td data-name="Memory" className="el-num">{bytes(worker.memory_bytes)}</td>
      {gpus && (
        <td data-name="GPU" className="el-num">
          {percent(worker.gpu_utilisation)}
          {worker.gpu_memory_bytes !== null && <span className="el-muted"> {bytes(worker.gpu_memory_bytes)}</span>}
        </td>
      )}
      <td data-name="Last heard" className={late ? "el-num el-text-warning" : "el-num"}>
        {quiet === null ? NOTHING : quiet === 0 ? "now" : roughly(quiet)}
      </td>
    </tr>
  );
});

/** A bar to the right of the middle: slower than the median; to the left: faster. */
function Deviation({ relative, slow }: { relative: number; slow: boolean }) {
  const share = Math.min(Math.abs(relative - 1), 1) * 50;
  return (
    <span className="el-deviation">
      <span className="el-deviation-bar" aria-hidden="true">
        <i
          className={slow ? "el-slow" : ""}
          style={{ width: `${share}%`, left: relative >= 1 ? "50%" : `${50 - share}%` }}
        />
      </span>
      <span className={slow ? "el-text-warning" : "el-muted"}>{relative.toFixed(2)}×</span>
    </span>
  );
}

function tone(worker: Worker): string {
  if (worker.straggler) return "warning";
  if (worker.waiting !== null) return "waiting";
  if (/fail|gone|lost|dead/.test(worker.state)) return "error";
  return /run|train|live|work/.test(worker.state) ? "ok" : "idle";
}
