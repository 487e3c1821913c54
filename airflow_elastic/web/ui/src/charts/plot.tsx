// One chart. It draws on a canvas, so for who cannot see it its label says what it shows, and arrow keys move the cursor.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import type { Series } from "../api/types.ts";
import { count } from "../format/numbers.ts";
import { useDark } from "../parts/settings.ts";
import { type ChartKind, METRIC } from "./catalogue.ts";
import { onPoint, pointAt, pointed } from "./cursor.ts";
import { holding, indexAt, newest, onlyValue, plotData, type PlotData, smoothed, type Value } from "./plot_data.ts";
import { type Backdrop, plotOptions } from "./plot_options.ts";
import type { TimeRange } from "./time_range.ts";

interface Props {
  kind: ChartKind;
  series: (Series | undefined)[];
  backdrop: Omit<Backdrop, "strange" | "log">;
  onRange: (range: TimeRange) => void;
}

/** A drag of fewer pixels is a click. */
const SMALLEST_DRAG = 6;

export function Plot({ kind, series, backdrop, onRange }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const readout = useRef<HTMLSpanElement>(null);
  const [log, setLog] = useState(false);
  const [smooth, setSmooth] = useState(false);
  const dark = useDark();
  const lists = series.flatMap((one) => (one ? [one.t, one.mean, one.min, one.max] : [null]));
  const data = useMemo(() => plotData(series), lists);
  const now = useRef({ data, backdrop: { ...backdrop, strange: data.strange, log }, onRange });
  now.current = { data, backdrop: { ...backdrop, strange: data.strange, log }, onRange };
  const ids = kind.names.join();
  const single = onlyValue(data);
  const curved = kind.id === "loss" || kind.id.startsWith(METRIC);

  // Made anew where what it is drawn with changes; else only its data change.
  useLayoutEffect(() => {
    const home = place.current;
    if (!home) return;
    const style = getComputedStyle(home);
    const colour = (name: string) => style.getPropertyValue(`--el-${name}`).trim() || "#888888";
    const options = plotOptions(kind, smooth, home.clientWidth, colour, () => now.current.backdrop, {
      setCursor: [(u) => pointAt(u.cursor.left == null || u.cursor.left < 0 ? null : u.posToVal(u.cursor.left, "x"))],
      setSelect: [
        (u) => {
          const { left, width } = u.select;
          if (width < SMALLEST_DRAG) return;
          now.current.onRange({ from: u.posToVal(left, "x"), until: u.posToVal(left + width, "x") });
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    });
    const made = new uPlot(options, aligned(now.current.data, kind, smooth), home);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      if (home.clientWidth !== made.width) made.setSize({ width: home.clientWidth, height: kind.height });
    });
    observer.observe(home);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [ids, dark, log, smooth, single]);

  useEffect(() => {
    plot.current?.setData(aligned(data, kind, smooth));
  }, [data, backdrop]);

  useEffect(() => {
    const write = () => {
      if (readout.current) readout.current.textContent = words(kind, now.current.data, pointed());
    };
    write();
    return onPoint(write);
  }, [data, kind]);

  const first = data.columns[0];
  const positive = first !== undefined && first.min.every((value) => value == null || value > 0);
  return (
    <figure className="el-chart">
      <figcaption>
        <span className="el-chart-title">{kind.title}</span>
        {data.strange.length > 0 && (
          <span className="el-chart-strange">{count(data.strange.length, "point")} not a number</span>
        )}
        {curved && !single && positive && (
          <button type="button" className="el-mini" aria-pressed={log} onClick={() => setLog(!log)}>
            log
          </button>
        )}
        {curved && !single && (
          <button type="button" className="el-mini" aria-pressed={smooth} title="A moving mean; the values stay, fainter" onClick={() => setSmooth(!smooth)}>
            smooth
          </button>
        )}
        {single && <span className="el-muted">one value so far</span>}
        <span className="el-chart-value" ref={readout} />
      </figcaption>
      {!single && <div
        className="el-plot"
        ref={place}
        tabIndex={0}
        role="img"
        aria-label={summary(kind, data)}
        style={{ height: kind.height }}
        onKeyDown={(event) => {
          if (plot.current && moveCursor(plot.current, event.key)) event.preventDefault();
        }}
        onBlur={() => plot.current?.setCursor({ left: -10, top: -10 })}
      />}
    </figure>
  );
}

function aligned({ times, columns }: PlotData, kind: ChartKind, smooth: boolean): uPlot.AlignedData {
  const lists: Value[][] = [];
  columns.forEach(({ mean, min, max }, index) => {
    lists.push(smooth ? smoothed(mean) : mean);
    if (index === 0 && !kind.stepped) lists.push(min, max);
  });
  if (smooth) lists.push(columns[0]?.mean ?? []);
  return [times, ...lists] as uPlot.AlignedData;
}

/** What the heading says: the values under the cursor, else the newest ones. */
function words(kind: ChartKind, { times, columns, strange }: PlotData, at: number | null): string {
  const index = at === null ? times.length - 1 : indexAt(times, at);
  if (index >= 0 && strange.includes(times[index] as number)) return "not a number";
  return columns
    .map(({ mean, min, max }, column) => {
      const value = at === null ? newest(mean) : holding(mean, index);
      const name = kind.words?.[column];
      const spread =
        at !== null && column === 0 && !kind.stepped && holding(min, index) !== holding(max, index)
          ? `  (${kind.format(holding(min, index))} to ${kind.format(holding(max, index))})`
          : "";
      return `${name ? `${name} ` : ""}${kind.format(value)}${spread}`;
    })
    .join("   ");
}

function summary(kind: ChartKind, { columns }: PlotData): string {
  const values = columns[0]?.mean.filter((value): value is number => value != null) ?? [];
  if (values.length === 0) return `${kind.title}: nothing yet`;
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  return `${kind.title} over time: now ${kind.format(values.at(-1))}, between ${kind.format(low)} and ${kind.format(high)}`;
}

function moveCursor(plot: uPlot, key: string): boolean {
  const width = plot.over.clientWidth;
  const left = plot.cursor.left == null || plot.cursor.left < 0 ? width : plot.cursor.left;
  const step = Math.max(width / 100, 1);
  const to = { ArrowLeft: left - step, ArrowRight: left + step, Home: 0, End: width }[key];
  if (to === undefined) return false;
  plot.setCursor({ left: Math.min(Math.max(to, 0), width), top: 10 });
  return true;
}
