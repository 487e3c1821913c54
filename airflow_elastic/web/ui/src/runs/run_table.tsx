// A row for each run. A heading sorts by its column; a second click turns the order round.
import type { RunRow as Row } from "../api/types.ts";
import { RunTableRow } from "./run_table_row.tsx";
import { nextSort } from "./sort.ts";

interface Props {
  runs: readonly Row[];
  now: number;
  sort: string;
  roots: readonly string[];
  onSort: (sort: string) => void;
}

interface Column {
  word: string;
  key?: string;
  numeric?: boolean;
}

const COLUMNS: Column[] = [
  { word: "Run", key: "name" },
  { word: "State", key: "state" },
  { word: "Progress", key: "step" },
  { word: "Loss" },
  { word: "Time left", key: "eta", numeric: true },
  { word: "World size", key: "world_size", numeric: true },
  { word: "Goodput", key: "goodput", numeric: true },
  { word: "Restarts", key: "restarts", numeric: true },
  { word: "Last news", key: "updated", numeric: true },
];

export function RunTable({ runs, now, sort, roots, onSort }: Props) {
  const sorted = sort.replace(/^-/, "");
  return (
    <div className="el-scroll el-panel" tabIndex={0} role="region" aria-label="Runs">
      <table className="el-table el-runs">
        <thead>
          <tr>
            {COLUMNS.map(({ word, key, numeric = false }) => (
              <th
                key={word}
                scope="col"
                className={numeric ? "el-num" : ""}
                aria-sort={key !== sorted ? undefined : sort.startsWith("-") ? "descending" : "ascending"}
              >
                {key ? (
                  <button type="button" onClick={() => onSort(nextSort(sort, key, numeric))}>
                    {word}
                    <span aria-hidden="true">{key !== sorted ? "" : sort.startsWith("-") ? " ↓" : " ↑"}</span>
                  </button>
                ) : (
                  word
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <RunTableRow key={run.path} run={run} now={now} roots={roots} />
          ))}
        </tbody>
      </table>
    </div>
  );
}
