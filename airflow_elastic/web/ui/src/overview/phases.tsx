// The trainings of a script that has several, in order; and the numbers that a run has left as its results.
import { numberMap } from "../api/numbers.ts";
import type { Overview, PhaseRow } from "../api/types.ts";
import { count, grouped, measure } from "../format/numbers.ts";
import { Panel } from "../parts/panel.tsx";

/** Whether the script has phases: one without them has one, without a name. */
export function hasPhases(phases: readonly PhaseRow[]): boolean {
  return phases.length > 1 || phases.some(({ name }) => Boolean(name));
}

export function Phases({ overview }: { overview: Overview }) {
  const { phases = [], ended_at: ended, metrics } = overview.status;
  const results = Object.entries(numberMap(metrics));
  return (
    <>
      {hasPhases(phases) && (
        <Panel title={count(phases.length, "phase")}>
          <ol className="el-attempts">
            {phases.map((phase, index) => (
              <li key={index} className={phase.complete ? "el-cause-good" : ended === null ? "el-cause-live" : ""}>
                <b className="el-attempt-number">{index + 1}</b>
                <span className="el-attempt-words">
                  {phase.name || `Phase ${index + 1}`}
                  <span className="el-muted">
                    {count(phase.steps, "step")} from step {grouped(phase.from_step ?? 0)},{" "}
                    {phase.complete ? "complete" : ended === null ? "at work now" : "not complete"}
                    {resultWords(phase.results)}
                  </span>
                </span>
              </li>
            ))}
          </ol>
        </Panel>
      )}
      {ended !== null && results.length > 0 && (
        <Panel title="Results">
          <ul className="el-legend">
            {results.map(([name, value]) => (
              <li key={name}>
                <span>{name}</span> <b>{measure(value)}</b>
              </li>
            ))}
          </ul>
        </Panel>
      )}
    </>
  );
}

function resultWords(results: Record<string, unknown> | undefined): string {
  return Object.entries(results ?? {})
    .map(([name, value]) => `, ${name} ${typeof value === "number" ? measure(value) : String(value)}`)
    .join("");
}
