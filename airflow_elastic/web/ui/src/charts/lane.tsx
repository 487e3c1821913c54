// Above the charts: the time axis, the attempts, and the events as marks that say what they were.
import { useRef, useState } from "react";
import { number } from "../api/numbers.ts";
import type { AttemptSpan, Mark, Series } from "../api/types.ts";
import { grouped } from "../format/numbers.ts";
import { axisLabel, moment } from "../format/times.ts";
import { useZone } from "../format/zone.ts";
import { causeClass } from "../overview/attempts.tsx";
import { usePointed } from "./cursor.ts";
import { indexAt } from "./plot_data.ts";
import { groupMarks, leader, type MarkGroup, SIGNS } from "./marks.ts";
import type { TimeRange } from "./time_range.ts";

interface Props {
  range: TimeRange;
  ticks: { at: number[]; distance: number };
  attempts: readonly AttemptSpan[];
  marks: readonly Mark[];
  width: number;
  /** The newest step at each time. */
  steps: Series | undefined;
}

const MARK_PIXELS = 15;
const MOST_IN_TIP = 6;

export function Lane({ range, ticks, attempts, marks, width, steps }: Props) {
  const zone = useZone();
  const cursor = usePointed();
  const [shown, setShown] = useState<number | null>(null);
  const [reached, setReached] = useState(0);
  const home = useRef<HTMLDivElement>(null);
  const groups = groupMarks(marks, range, MARK_PIXELS / Math.max(width, 1));
  const place = (at: number) => `${(100 * (at - range.from)) / (range.until - range.from)}%`;
  const focus = Math.min(reached, groups.length - 1);
  const group = shown === null ? undefined : groups[shown];

  const move = (to: number) => {
    const next = Math.min(Math.max(to, 0), groups.length - 1);
    setReached(next);
    home.current?.querySelectorAll<HTMLButtonElement>(".el-mark")[next]?.focus();
  };
  return (
    <div className="el-lane" ref={home}>
      <div className="el-lane-attempts">
        {attempts.filter(({ from, until }) => from < range.until && (until ?? range.until) > range.from).map((attempt) => (
          <span
            key={attempt.number}
            className={`el-lane-attempt el-cause-${causeClass(attempt)}`}
            style={{
              left: place(Math.max(attempt.from, range.from)),
              right: `calc(100% - ${place(Math.min(attempt.until ?? range.until, range.until))})`,
            }}
            title={`Attempt ${attempt.number}: ${attempt.headline}`}
          >
            {attempt.number}
          </span>
        ))}
      </div>
      <div
        className="el-lane-marks"
        role="toolbar"
        aria-label="Events of the run, in order of time"
        onKeyDown={(event) => {
          const to = { ArrowLeft: focus - 1, ArrowRight: focus + 1, Home: 0, End: groups.length - 1 }[event.key];
          if (event.key === "Escape") setShown(null);
          if (to === undefined) return;
          event.preventDefault();
          move(to);
        }}
      >
        {groups.map((one, index) => (
          <button
            key={`${one.marks[0]?.at}-${one.marks[0]?.kind}`}
            type="button"
            className={`el-mark el-mark-${leader(one).kind} el-level-${one.level}`}
            style={{ left: `${one.place * 100}%` }}
            tabIndex={index === focus ? 0 : -1}
            aria-label={label(one, zone)}
            onMouseEnter={() => setShown(index)}
            onMouseLeave={() => setShown(null)}
            onFocus={() => {
              setShown(index);
              setReached(index);
            }}
            onBlur={() => setShown(null)}
            onClick={() => setShown(index)}
          >
            <span aria-hidden="true">{SIGNS[leader(one).kind]}</span>
          </button>
        ))}
        {group && <Tip group={group} zone={zone} />}
      </div>
      <div className="el-lane-axis" aria-hidden="true">
        {ticks.at.map((at) => (
          <span key={at} style={{ left: place(at) }}>
            {axisLabel(at, ticks.distance, zone)}
          </span>
        ))}
        {cursor !== null && (
          <span className="el-lane-cursor" style={{ left: place(cursor) }}>
            {moment(cursor, zone).slice(5)}
            {stepWords(steps, cursor)}
          </span>
        )}
      </div>
    </div>
  );
}

function stepWords(steps: Series | undefined, at: number): string {
  const step = steps ? number(steps.max[indexAt(steps.t, at)]) : null;
  return step === null ? "" : ` · step ${grouped(step)}`;
}

function Tip({ group, zone }: { group: MarkGroup; zone: string }) {
  const first = leader(group);
  const others = group.marks.filter((mark) => mark !== first);
  const shown = [first, ...others].slice(0, MOST_IN_TIP).sort((a, b) => a.at - b.at);
  const left = `clamp(0px, calc(${group.place * 100}% - 160px), max(0px, calc(100% - 320px)))`;
  return (
    <div className="el-tip" role="tooltip" style={{ left }}>
      {shown.map((mark) => (
        <p key={`${mark.at}${mark.text}`} className={`el-level-${mark.level}`}>
          <span className="el-muted">{moment(mark.at, zone)}</span> {mark.text}
        </p>
      ))}
      {group.marks.length > shown.length && <p className="el-muted">and {group.marks.length - shown.length} more</p>}
    </div>
  );
}

function label(group: MarkGroup, zone: string): string {
  const first = leader(group);
  const more = group.marks.length - 1;
  return `${moment(first.at, zone)}: ${first.text}${more ? `, and ${more} more` : ""}`;
}
