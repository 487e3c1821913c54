// How a chart is drawn: bands of attempts behind, lines of events through, the curve with its spread in front.
import uPlot from "uplot";
import type { AttemptSpan, Condition, Mark } from "../api/types.ts";
import type { ChartKind } from "./catalogue.ts";
import type { TimeRange } from "./time_range.ts";

/** Left of and right of what is plotted, so that everything stands in one line. */
export const LEFT = 56;
export const RIGHT = 10;

/** What lies behind a curve. It changes while the chart stays. */
export interface Backdrop {
  range: TimeRange;
  ticks: number[];
  attempts: readonly AttemptSpan[];
  marks: readonly Mark[];
  conditions: readonly Condition[];
  strange: number[];
  log: boolean;
}

export type Colours = (name: string) => string;

const stepped = uPlot.paths.stepped?.({ align: 1 });

export function plotOptions(
  kind: ChartKind,
  smooth: boolean,
  width: number,
  colour: Colours,
  backdrop: () => Backdrop,
  hooks: uPlot.Hooks.Arrays,
): uPlot.Options {
  const lines: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  kind.names.forEach((_, index) => {
    const stroke = colour(kind.colours[index] ?? "slate");
    const paths = kind.stepped ? stepped : undefined;
    const own = { spanGaps: false, points: { show: lonely }, ...(paths ? { paths } : {}) };
    lines.push({ stroke, width: index === 0 ? 1.75 : 1.25, dash: index === 0 ? [] : [4, 3], ...own });
    if (index > 0 || kind.stepped) return;
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    lines.push({ ...edge }, { ...edge });
    bands.push({ series: [3, 2], fill: faded(stroke, 0.16) });
  });
  if (smooth) lines.push({ stroke: faded(colour(kind.colours[0] ?? "slate"), 0.35), width: 1, points: { show: false } });
  return {
    width,
    height: kind.height,
    padding: [8, RIGHT, 4, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "elastic", setSeries: false, scales: ["x", null] },
      drag: { x: true, y: false, setScale: false },
      points: { size: 7, width: 1.5 },
      y: false,
      focus: { prox: -1 },
    },
    scales: {
      x: { time: true, range: () => [backdrop().range.from, backdrop().range.until] },
      y: { distr: backdrop().log ? 3 : 1, range: (_, low, high) => yRange(kind, low, high, backdrop().log) },
    },
    axes: [
      {
        size: 0,
        gap: 0,
        ticks: { show: false },
        splits: () => backdrop().ticks,
        values: (_, splits) => splits.map(() => ""),
        grid: { stroke: colour("grid"), width: 1 },
      },
      {
        size: LEFT,
        gap: 6,
        stroke: colour("muted"),
        font: "11px ui-sans-serif, system-ui, sans-serif",
        ticks: { show: false },
        space: 24,
        incrs: kind.format(2.5) === kind.format(2) || kind.stepped ? wholeSteps : undefined,
        values: (_, splits) => splits.map((value) => (value === null ? "" : tight(kind.format(value)))),
        grid: { stroke: colour("grid"), width: 1 },
      } as uPlot.Axis,
    ],
    series: lines,
    bands,
    hooks: { drawClear: [(plot) => behind(plot, backdrop(), colour)], draw: [(plot) => before(plot, backdrop(), colour)], ...hooks },
  };
}

const wholeSteps = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 2500, 5000, 10_000];

/** An axis has little room: 12.00 is 12. */
function tight(text: string): string {
  return text.replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
}

function yRange(kind: ChartKind, low: number | null, high: number | null, log: boolean): [number, number] {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (log) return low > 0 ? [low * 0.9, high * 1.1] : [1e-9, 1];
  if (kind.top !== undefined) return [0, kind.top];
  const room = (high - (kind.fromZero ? 0 : low)) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [kind.fromZero ? Math.min(0, low) : low - room, high + room];
}

/** A point with a gap on both sides would be no line. */
function lonely(plot: uPlot, index: number, first: number, last: number): boolean {
  return index > 0 && last - first <= 1 && plot.data[0].length > 0;
}

/** The colour, nearly transparent. Colours of our style sheets are #rrggbb. */
export function faded(colour: string, share: number): string {
  const part = Math.round(share * 255).toString(16).padStart(2, "0");
  return /^#[0-9a-f]{6}$/i.test(colour) ? colour + part : colour;
}

function behind(plot: uPlot, { range, attempts, conditions }: Backdrop, colour: Colours): void {
  const { ctx, bbox } = plot;
  const x = (at: number) => plot.valToPos(Math.min(Math.max(at, range.from), range.until), "x", true);
  ctx.save();
  attempts.forEach(({ from, until, number }) => {
    const end = until ?? range.until;
    if (end < range.from || from > range.until) return;
    ctx.fillStyle = colour(number % 2 ? "band" : "band-other");
    ctx.fillRect(x(from), bbox.top, Math.max(x(end) - x(from), 1), bbox.height);
  });
  conditions.forEach(({ since, until, kind }) => {
    const end = until ?? range.until;
    if (end < range.from || since > range.until) return;
    // Who waits does not train, so that fills the chart; a straggler comes and goes, so it is a line at the bottom.
    const height = kind === "straggler" ? STRIP * devicePixelRatio : bbox.height;
    ctx.fillStyle = faded(colour(kind === "trouble" ? "red" : "amber"), kind === "straggler" ? 0.8 : 0.13);
    ctx.fillRect(x(since), bbox.top + bbox.height - height, Math.max(x(end) - x(since), 1), height);
  });
  ctx.restore();
}

const STRIP = 3;

const LINES: Partial<Record<Mark["kind"], string>> = { failure: "amber", scale: "blue", phase: "violet" };

function before(plot: uPlot, { range, marks, strange }: Backdrop, colour: Colours): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.lineWidth = ratio;
  for (const { at, kind, level } of marks) {
    const name = level === "error" ? "red" : LINES[kind];
    if (!name || at < range.from || at > range.until) continue;
    const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
    ctx.strokeStyle = faded(colour(name), 0.75);
    ctx.setLineDash(name === "red" ? [] : [3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.fillStyle = colour("red");
  for (const at of strange) {
    if (at < range.from || at > range.until) continue;
    ctx.fillRect(plot.valToPos(at, "x", true) - ratio, bbox.top + bbox.height - 6 * ratio, 2 * ratio, 6 * ratio);
  }
  ctx.restore();
}
