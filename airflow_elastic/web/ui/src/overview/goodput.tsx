// Where the time went: one bar of the whole run, and its parts in words.
import type { Overview, TimeRow } from "../api/types.ts";
import { percent } from "../format/numbers.ts";
import { duration } from "../format/times.ts";
import { Panel } from "../parts/panel.tsx";

/** The parts that are worth a place, the wall time, which they sum to, left out. */
export function timeParts(rows: readonly TimeRow[]): { row: TimeRow; share: number }[] {
  const parts = rows.filter(({ name, seconds }) => name !== "wall" && seconds > 0);
  const all = parts.reduce((sum, { seconds }) => sum + seconds, 0);
  return parts.map((row) => ({ row, share: all > 0 ? row.seconds / all : 0 }));
}

export function Goodput({ overview }: { overview: Overview }) {
  const parts = timeParts(overview.goodput.rows);
  if (parts.length === 0) return null;
  const legend = (
    <ul className="el-legend">
      {parts.map(({ row, share }) => (
        <li key={row.name} title={row.meaning}>
          <i className={`el-time-${row.name}`} aria-hidden="true" />
          <span>{row.label}</span> <b>{percent(share)}</b> <span className="el-muted">{duration(row.seconds)}</span>
        </li>
      ))}
    </ul>
  );
  return (
    <Panel title="Where the time went" aside={legend}>
      <div className="el-waterfall" aria-hidden="true">
        {parts.map(({ row, share }) => (
          <span
            key={row.name}
            className={`el-time-${row.name}`}
            style={{ flexGrow: share }}
            title={`${row.label}: ${duration(row.seconds)}, ${percent(share)}`}
          />
        ))}
      </div>
    </Panel>
  );
}
