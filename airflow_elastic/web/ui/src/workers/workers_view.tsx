// Who works, how fast, and what is out of line: a row for each worker, and a map of the step times of all ranks.
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { Overview, WorkersDocument } from "../api/types.ts";
import { count } from "../format/numbers.ts";
import { duration } from "../format/times.ts";
import { Choice } from "../parts/choice.tsx";
import { Empty, Notice, Panel, Pending } from "../parts/panel.tsx";
import { useWords } from "../parts/query.ts";
import { Search } from "../parts/search.tsx";
import { usePollInterval } from "../parts/settings.ts";
import { HeatMapPanel } from "./heat_map_panel.tsx";
import { WorkerTable } from "./worker_table.tsx";
import { counts, type Only, select } from "./selection.ts";

export function WorkersView({ path, overview }: { path: string; overview: Overview }) {
  const [words, change] = useWords();
  const polled = usePolled<WorkersDocument>(address(`/${path}/workers`), usePollInterval());
  const found = polled.document;
  if (!found) return <Pending trouble={polled.trouble} lines={6} />;
  const all = found.units.flatMap(({ workers }) => workers);
  const only = (words.get("only") ?? "") as Only;
  const text = words.get("q") ?? "";
  const units = select(found.units, only, text);
  const many = counts(all);
  const median = found.median_step_seconds;
  const tools = (
    <div className="el-tools">
      <Choice
        label="Which workers"
        value={only}
        options={[
          { value: "", word: "All", count: all.length },
          { value: "unwell", word: "Slow or failed", count: many.unwell },
          { value: "waiting", word: "Waiting", count: many.waiting },
        ]}
        onChange={(value) => change({ only: value })}
      />
      {all.length > 8 && <Search label="Worker or machine" value={text} onChange={(q) => change({ q })} />}
    </div>
  );
  const leftOut = overview.status.excluded_machines ?? [];
  return (
    <>
      {leftOut.length > 0 && (
        <Notice level="info">
          Somebody has left out {leftOut.length === 1 ? "the machine" : "the machines"} {leftOut.join(", ")}: new attempts use others.
        </Notice>
      )}
      <Panel
        title={median === null ? count(all.length, "worker") : `${count(all.length, "worker")}, median step ${duration(median)}`}
        aside={all.length > 0 ? tools : null}
      >
        {all.length === 0 && <Empty>{overview.status.ended_at ? "The run has ended; no worker is left." : "No worker yet."}</Empty>}
        {all.length > 0 && units.length === 0 && <Empty>No worker is like that.</Empty>}
        {units.length > 0 && <WorkerTable grouped={found.units.length > 1 && all.length > found.units.length} units={units} path={path} overview={overview} />}
      </Panel>
      <HeatMapPanel path={path} ranks={overview.status.world_size} />
    </>
  );
}
