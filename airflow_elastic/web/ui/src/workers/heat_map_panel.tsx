// The step times of all ranks over time: a slow machine is a line, a slow moment is a column.
import { useRef, useState } from "react";
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { HeatMap } from "../api/types.ts";
import { duration, moment } from "../format/times.ts";
import { useZone } from "../format/zone.ts";
import { Empty, Panel, Pending } from "../parts/panel.tsx";
import { useDark, usePollInterval } from "../parts/settings.ts";
import { useWidth } from "../parts/width.ts";
import { timeTicks } from "../charts/time_range.ts";
import { axisLabel } from "../format/times.ts";
import { useHeatCanvas } from "./heat_canvas.ts";
import { columnsFor, heatColour, mapHeight, slowestRow } from "./heat_scale.ts";

const SLOWER = 10;

export function HeatMapPanel({ path, ranks }: { path: string; ranks: number }) {
  const url = address(`/${path}/heatmap`, { columns: columnsFor(ranks) });
  const polled = usePolled<HeatMap>(url, usePollInterval() * SLOWER, path);
  const map = polled.document;
  return (
    <Panel title={map?.of === "forward" ? "Forward pass of each rank" : "Step time of each rank"} aside={map && map.t.length > 0 ? <Scale map={map} /> : null}>
      {!map && <Pending trouble={polled.trouble} lines={4} />}
      {map && map.t.length === 0 && <Empty>No step times yet.</Empty>}
      {map && map.t.length > 0 && <Map map={map} />}
    </Panel>
  );
}

interface Cell {
  row: number;
  column: number;
}

function Map({ map }: { map: HeatMap }) {
  const zone = useZone();
  const dark = useDark();
  const [width, home] = useWidth();
  const [cell, setCell] = useState<Cell | null>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const rows = map.ranks.length;
  const columns = map.t.length;
  const height = mapHeight(rows);
  useHeatCanvas(canvas, map, width, height, dark);
  const first = map.t[0] as number;
  const last = map.t[columns - 1] as number;
  const ticks = timeTicks({ from: first, until: Math.max(last, first + 1) }, width / 90, zone);
  const slow = slowestRow(map);

  const move = (key: string): boolean => {
    const { row, column } = cell ?? { row: 0, column: columns - 1 };
    const to = {
      ArrowUp: { row: row - 1, column }, ArrowDown: { row: row + 1, column },
      ArrowLeft: { row, column: column - 1 }, ArrowRight: { row, column: column + 1 },
      Home: { row, column: 0 }, End: { row, column: columns - 1 },
    }[key];
    if (!to) return false;
    setCell({ row: clamp(to.row, rows), column: clamp(to.column, columns) });
    return true;
  };
  const said = cell && words(map, cell, zone);
  const summary = slow
    ? `Over this time rank ${map.ranks[slow.row]} was the slowest, ${slow.relative.toFixed(2)} times the median.`
    : map.of === "forward"
      ? `The forward passes of all ${rows} ranks take equally long.`
      : `The steps of all ${rows} ranks take equally long. Where ranks wait for each other in each step, that is so whoever is slow.`;
  return (
    <div className="el-heat" ref={home}>
      <div
        className="el-heat-map"
        tabIndex={0}
        role="group"
        aria-label={`Map of ${map.of === "forward" ? "forward passes" : "step times"}, ${rows} ranks. ${summary} Arrow keys read single values.`}
        style={{ height }}
        onKeyDown={(event) => move(event.key) && event.preventDefault()}
        onMouseMove={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          setCell({
            row: clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), rows),
            column: clamp(Math.floor(((event.clientX - box.left) / box.width) * columns), columns),
          });
        }}
        onMouseLeave={() => setCell(null)}
      >
        <canvas ref={canvas} aria-hidden="true" style={{ width: "100%", height }} />
        {cell && (
          <span
            className="el-heat-cell"
            aria-hidden="true"
            style={{
              left: `${(100 * cell.column) / columns}%`, width: `${100 / columns}%`,
              top: `${(100 * cell.row) / rows}%`, height: `${100 / rows}%`,
            }}
          />
        )}
      </div>
      <div className="el-lane-axis" aria-hidden="true">
        {ticks.at.filter((at) => inside((at - first) / Math.max(last - first, 1), width)).map((at) => (
          <span key={at} style={{ left: `${(100 * (at - first)) / Math.max(last - first, 1)}%` }}>
            {axisLabel(at, ticks.distance, zone)}
          </span>
        ))}
      </div>
      <p className="el-heat-words" role="status">{said ?? summary}</p>
    </div>
  );
}

function words(map: HeatMap, { row, column }: Cell, zone: string): string {
  const seconds = map.rows[row]?.[column] ?? null;
  const against = seconds !== null && map.p50 ? `, ${(seconds / map.p50).toFixed(2)}× the median` : "";
  const value = seconds === null ? "nothing reported" : `${duration(seconds)}${against}`;
  return `Rank ${map.ranks[row]} at ${moment(map.t[column], zone)}: ${value}`;
}

/** Half of a label. */
const LABEL_PIXELS = 26;

/** Whether there is room for a label at a place, 0 to 1. */
function inside(place: number, width: number): boolean {
  return place * width >= LABEL_PIXELS && (1 - place) * width >= LABEL_PIXELS;
}

function clamp(value: number, size: number): number {
  return Math.min(Math.max(value, 0), size - 1);
}

/** What the colours mean. */
function Scale({ map }: { map: HeatMap }) {
  const dark = useDark();
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${heatColour(share, dark).join()})`);
  return (
    <div className="el-heat-scale">
      <span>median {duration(map.p50)}</span>
      <i style={{ background: `linear-gradient(to right, ${stops.join()})` }} aria-hidden="true" />
      <span>2× and more</span>
    </div>
  );
}
