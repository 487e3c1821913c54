// One event: when, what, and what speaks for it.
import { memo } from "react";
import { Link, useSearchParams } from "react-router-dom";
import type { EventRow, Evidence, LogPlace } from "../api/types.ts";
import { stripped } from "../format/ansi.ts";
import { lastLine } from "../logs/choose.ts";
import { Moment } from "../parts/moment.tsx";
import { viewLink } from "../run/where.ts";

export const EventItem = memo(function EventItem({ event }: { event: EventRow }) {
  const [words] = useSearchParams();
  const { level, text, attempt, evidence, log } = event;
  const proofs = evidence ? proofsOf(evidence) : [];
  return (
    <li className={`el-event el-level-${level}`} id={`event-${event.seq}`}>
      <span className="el-event-when">
        <Moment at={event.at} />
      </span>
      <span className="el-event-sign" aria-hidden="true" />
      <div className="el-event-what">
        <p>
          {level !== "info" && <span className="el-hidden">{level}: </span>}
          {text}
          {attempt !== null && !text.includes(`attempt ${attempt}`) && <span className="el-chip">attempt {attempt}</span>}
          {log && (
            <Link className="el-event-log" to={viewLink(words, "logs", place(log, evidence))}>
              log of rank {log.rank}
            </Link>
          )}
        </p>
        {proofs.length > 0 && (
          <details open={level === "error" && proofs.length === 1 && proofs[0]?.short}>
            <summary>{proofs.map(({ name }) => name).join(", ")}</summary>
            {proofs.map(({ name, body }) => (
              <figure key={name} className="el-proof">
                <figcaption>{name}</figcaption>
                <pre className="el-pre">{body}</pre>
              </figure>
            ))}
          </details>
        )}
      </div>
    </li>
  );
});

/** Where the log is, and a search for its line: the last of a traceback names the error. */
function place(log: LogPlace, evidence: Evidence | null): Record<string, string | number> {
  const line = lastLine(evidence?.traceback ?? evidence?.error);
  return {
    attempt: log.attempt,
    rank: log.rank,
    ...(log.generation != null ? { generation: log.generation } : {}),
    ...(line ? { q: line } : {}),
  };
}

interface Proof {
  name: string;
  body: string;
  short: boolean;
}

const SHORT = 300;

function proofsOf(evidence: Evidence): Proof[] {
  const proofs: Proof[] = [];
  const add = (name: string, value: unknown) => {
    if (value === null || value === undefined || value === "") return;
    const body = stripped(typeof value === "string" ? value : written(value));
    proofs.push({ name, body, short: body.length < SHORT });
  };
  add("Error", evidence.traceback ? null : evidence.error);
  add("Traceback", evidence.traceback);
  add("Exit code", evidence.exit_code);
  add("Signal", evidence.signal);
  add("Last output", evidence.output);
  add("The cluster's words", evidence.cluster);
  add("Stacks", evidence.stacks);
  return proofs;
}

function written(value: unknown): string {
  return typeof value === "number" ? String(value) : JSON.stringify(value, null, 2);
}
