// All runs that the viewer may read: who trains, who waits, who needs somebody.
import { useEffect } from "react";
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { RunList } from "../api/types.ts";
import { Live } from "../parts/live.tsx";
import { Choice, Select } from "../parts/choice.tsx";
import { Empty, Pending } from "../parts/panel.tsx";
import { useWords } from "../parts/query.ts";
import { Search } from "../parts/search.tsx";
import { pollInterval, useConfig } from "../parts/settings.ts";
import { look, STATES } from "../format/states.ts";
import { RunTable } from "./run_table.tsx";
import { RunTotals, WAITING } from "./run_totals.tsx";

const PAGE = 100;
const NO_ROOTS: string[] = [];

export function RunsPage() {
  const config = useConfig();
  const [words, change] = useWords();
  const state = words.get("state") ?? "";
  const text = words.get("q") ?? "";
  const sort = words.get("sort") ?? "-updated";
  const offset = Math.max(0, Number(words.get("offset") ?? 0) || 0);
  const url = address("/runs", { state, q: text, sort, limit: PAGE, offset });
  const polled = usePolled<RunList>(url, pollInterval(config), "runs");
  const list = polled.document;
  const alone = config?.mode === "standalone";
  useEffect(() => {
    if (alone) document.title = "Elastic runs"; // inside Airflow the title is Airflow's
  }, [alone]);
  const filtered = state !== "" || text !== "";
  return (
    <>
      <div className="el-header el-runs-header">
        <div className="el-header-row">
          <h1>Elastic runs</h1>
          {config && config.roots.length > 0 && <code className="el-muted">{config.roots.join(", ")}</code>}
          <span className="el-grow" />
          <Live polled={polled} ended={false} />
        </div>
        {list && <RunTotals totals={list.totals} state={state} onState={(value) => change({ state: value, offset: null })} />}
      </div>
      <main className="el-view">
        <div className="el-tools el-tools-wide">
          <Search label="Search by name" value={text} onChange={(q) => change({ q, offset: null })} />
          <Select
            label="State"
            value={state}
            options={[{ value: "", word: "All states" }, { value: WAITING, word: "Waiting for anything" }, ...STATES.map((value) => ({ value, word: look(value).word }))]}
            onChange={(value) => change({ state: value, offset: null })}
          />
          {list && list.total > PAGE && (
            <Choice
              label="Page"
              value=""
              options={[
                ...(offset > 0 ? [{ value: String(offset - PAGE), word: "Earlier" }] : []),
                { value: "", word: `${offset + 1} to ${Math.min(offset + PAGE, list.total)} of ${list.total}` },
                ...(offset + PAGE < list.total ? [{ value: String(offset + PAGE), word: "Later" }] : []),
              ]}
              onChange={(value) => value && change({ offset: value === "0" ? null : value })}
            />
          )}
        </div>
        {!list && <Pending trouble={polled.trouble} lines={10} />}
        {list && list.runs.length === 0 && (
          <Empty>{filtered ? "No run is like that." : "No elastic run yet. The first one appears here as soon as it begins."}</Empty>
        )}
        {list && list.runs.length > 0 && (
          <RunTable roots={config?.roots ?? NO_ROOTS} runs={list.runs} now={list.at} sort={sort} onSort={(key) => change({ sort: key, offset: null })} />
        )}
      </main>
    </>
  );
}
