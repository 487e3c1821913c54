// All charts of a run, one below the other: one time axis, one cursor, the attempts and events behind all of them.
import { useCallback, useEffect, useMemo, useState } from "react";
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { HistoryDocument, Overview } from "../api/types.ts";
import { useZone } from "../format/zone.ts";
import { Choice } from "../parts/choice.tsx";
import { Empty, Panel, Pending } from "../parts/panel.tsx";
import { useWords } from "../parts/query.ts";
import { usePollInterval } from "../parts/settings.ts";
import { useWidth } from "../parts/width.ts";
import { ASKED_FIRST, type ChartKind, chartsOf, chosenAtFirst } from "./catalogue.ts";
import { ChartPicker } from "./chart_picker.tsx";
import { Lane } from "./lane.tsx";
import { Plot } from "./plot.tsx";
import { LEFT, RIGHT } from "./plot_options.ts";
import { asked, lastsFor, shownRange, type TimeRange, timeTicks } from "./time_range.ts";

const POINTS = 500;
const TICK_PIXELS = 90;
/** Series are written less often than the state. */
const SLOWER = 3;

export function ChartStack({ path, overview }: { path: string; overview: Overview }) {
  const [words, change] = useWords();
  const interval = usePollInterval() * SLOWER;
  const { status, attempts, marks, conditions } = overview;
  const end = status.ended_at ?? status.at;
  const ask = asked(words, end);
  // Which metrics there are is known with the first answer; then they are asked for, too.
  const [known, setKnown] = useState("");
  const charts = useMemo(() => chartsOf(known ? known.split("\n") : []), [known]);
  const shown = words.get("charts")?.split(",") ?? chosenAtFirst(charts);
  const wanted = charts.filter(({ id }) => shown.includes(id)).flatMap((chart) => chart.names);
  const names = [...(known ? wanted : ASKED_FIRST), "step"].join(",");
  const url = address(`/${path}/history`, { names, since: ask.since, until: ask.until, points: POINTS });
  const polled = usePolled<HistoryDocument>(url, interval, path);
  const history = polled.document;
  const there = history?.names.join("\n");
  useEffect(() => {
    if (there !== undefined) setKnown(there);
  }, [there]);

  const [width, home] = useWidth();
  const inner = Math.max(width - LEFT - RIGHT, 1);
  const zone = useZone();
  const { from, until } = shownRange(ask, status.created_at, end);
  const range = useMemo(() => ({ from, until }), [from, until]);
  const ticks = useMemo(() => timeTicks(range, inner / TICK_PIXELS, zone), [range, inner, zone]);
  const backdrop = useMemo(
    () => ({ range, ticks: ticks.at, attempts, marks, conditions }),
    [range, ticks, attempts, marks, conditions],
  );
  const zoom = useCallback(
    (to: TimeRange) => change({ from: to.from.toFixed(1), until: to.until.toFixed(1), last: null }),
    [change],
  );

  const lasts = lastsFor(end - status.created_at);
  const zoomed = words.has("from");
  const tools = (
    <div className="el-tools">
      {zoomed && (
        <button type="button" className="el-link" onClick={() => change({ from: null, until: null })}>
          Whole run
        </button>
      )}
      {lasts.length > 1 && (
        <Choice
          label="Stretch of time"
          value={zoomed ? "-" : (words.get("last") ?? "")}
          options={lasts}
          onChange={(last) => change({ last, from: null, until: null })}
        />
      )}
      <ChartPicker charts={charts} shown={shown} onChange={(ids) => change({ charts: ids?.join(",") ?? null })} />
    </div>
  );
  return (
    <Panel title="How it got here" aside={tools}>
      <div ref={home} className="el-stack">
        <div className="el-lane-home" style={{ paddingLeft: LEFT, paddingRight: RIGHT }}>
          <Lane range={range} ticks={ticks} attempts={attempts} marks={marks} width={inner} steps={history?.series.step} />
        </div>
        {!history && <Pending trouble={polled.trouble} lines={6} />}
        {history && charts.length === 0 && (
          <Empty>No history yet. It begins with the first steps that the ranks report.</Empty>
        )}
        {width > 0 &&
          charts
            .filter(({ id }) => shown.includes(id))
            .map((kind) => (
              <Plot key={kind.id} kind={kind} series={seriesOf(kind, history)} backdrop={backdrop} onRange={zoom} />
            ))}
      </div>
    </Panel>
  );
}

function seriesOf(kind: ChartKind, history: HistoryDocument | undefined) {
  return kind.names.map((name) => history?.series[name]);
}
