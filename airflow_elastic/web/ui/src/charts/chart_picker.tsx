// Which charts are shown: a list to tick, kept in the address.
import type { ChartKind } from "./catalogue.ts";

interface Props {
  charts: readonly ChartKind[];
  shown: readonly string[];
  onChange: (ids: string[] | null) => void;
}

export function ChartPicker({ charts, shown, onChange }: Props) {
  if (charts.length < 2) return null;
  return (
    <details className="el-picker">
      <summary>Charts</summary>
      <div className="el-picker-list">
        {charts.map(({ id, title }) => (
          <label key={id}>
            <input
              type="checkbox"
              checked={shown.includes(id)}
              onChange={(event) => {
                const wanted = new Set(event.target.checked ? [...shown, id] : shown.filter((one) => one !== id));
                onChange(charts.map((chart) => chart.id).filter((one) => wanted.has(one)));
              }}
            />
            {title}
          </label>
        ))}
        <button type="button" className="el-link" onClick={() => onChange(null)}>
          Reset
        </button>
      </div>
    </details>
  );
}
