// Which charts there are: of the series that a run has, in the order in which people look at them.
import { grouped, measure, percent, rate } from "../format/numbers.ts";
import { duration } from "../format/times.ts";

export interface ChartKind {
  id: string;
  title: string;
  /** Names of series; the first is the one that counts. */
  names: string[];
  /** Words for the series, where there are several. */
  words?: string[];
  colours: string[];
  format: (value: number | null | undefined) => string;
  /** A value holds until the next one, as the number of workers does. */
  stepped?: boolean;
  /** Whether the axis begins at 0; a fixed end where it has one. */
  fromZero?: boolean;
  top?: number;
  height: number;
}

const known: ChartKind[] = [
  { id: "loss", title: "Loss", names: ["loss"], colours: ["blue"], format: measure, height: 168 },
  {
    id: "samples", title: "Samples per second", names: ["samples_per_second"], colours: ["green"], format: rate,
    fromZero: true, height: 104,
  },
  {
    id: "step_time", title: "Step time", names: ["step_seconds", "slowest_seconds"], words: ["median", "slowest rank"],
    colours: ["violet", "amber"], format: duration, fromZero: true, height: 104,
  },
  {
    id: "world_size", title: "World size", names: ["world_size"], colours: ["slate"], format: grouped, stepped: true,
    fromZero: true, height: 88,
  },
  {
    id: "workers", title: "Workers", names: ["workers", "target_workers"], words: ["there", "wanted"],
    colours: ["slate", "amber"], format: grouped, stepped: true, fromZero: true, height: 88,
  },
  { id: "goodput", title: "Goodput", names: ["goodput"], colours: ["teal"], format: percent, fromZero: true, top: 1, height: 88 },
];

/** What the names of the script's own series begin with. */
export const METRIC = "metrics.";
const METRIC_COLOURS = ["violet", "amber", "teal", "blue", "green"];
const METRICS_AT_FIRST = 2;

function metricChart(name: string, index: number): ChartKind {
  const colour = METRIC_COLOURS[index % METRIC_COLOURS.length] as string;
  return { id: name, title: name.slice(METRIC.length), names: [name], colours: [colour], format: measure, height: 104 };
}

/** Every chart that these series make: loss, the script's own metrics, then ours. */
export function chartsOf(names: readonly string[]): ChartKind[] {
  const there = new Set(names);
  const ours = known.filter((chart) => there.has(chart.names[0] as string));
  const metrics = names.filter((name) => name.startsWith(METRIC)).sort().map(metricChart);
  return [...ours.filter(({ id }) => id === "loss"), ...metrics, ...ours.filter(({ id }) => id !== "loss")];
}

const FIRST = new Set(["loss", "samples", "step_time", "world_size", "goodput"]);

/** Those shown to who has not chosen. */
export function chosenAtFirst(charts: readonly ChartKind[]): string[] {
  const metrics = charts.filter(({ id }) => id.startsWith(METRIC)).slice(0, METRICS_AT_FIRST);
  const shown = new Set(metrics.map(({ id }) => id));
  return charts.filter(({ id }) => FIRST.has(id) || shown.has(id)).map(({ id }) => id);
}

/** What to ask for before it is known what there is. */
export const ASKED_FIRST = known.filter(({ id }) => FIRST.has(id)).flatMap(({ names }) => names);
