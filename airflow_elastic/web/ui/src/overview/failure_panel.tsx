// Why it failed, or why the last attempt did: the reason, the traceback, the way to the log.
import { Link, useSearchParams } from "react-router-dom";
import type { Failure, Overview } from "../api/types.ts";
import { Panel } from "../parts/panel.tsx";
import { viewLink } from "../run/where.ts";

/** The failure to show: that of a run that has failed, or of the attempt that has ended while none trains. */
export function failureToShow({ status }: Overview): { attempt: number; failure: Failure } | null {
  if (status.state === "running" || status.outcome === "succeeded" || status.outcome === "stopped") return null;
  for (const { number, failure } of status.attempts.toReversed()) {
    if (failure) return { attempt: number, failure };
  }
  return null;
}

export function FailurePanel({ overview }: { overview: Overview }) {
  const [words] = useSearchParams();
  const shown = failureToShow(overview);
  if (!shown) return null;
  const { attempt, failure } = shown;
  const title = overview.status.outcome === "failed" ? "Why it failed" : `Why attempt ${attempt} ended`;
  const place = { attempt, ...(failure.rank != null ? { rank: failure.rank } : {}) };
  return (
    <Panel
      title={title}
      level={overview.status.outcome === "failed" ? "error" : "warning"}
      aside={<Link to={viewLink(words, "logs", place)}>Open the log</Link>}
    >
      <p className="el-reason">
        <b>{failure.kind}</b> {failure.reason}
        {failure.exit_code != null && <span className="el-muted"> · exit code {failure.exit_code}</span>}
      </p>
      {(failure.traceback ?? failure.error) && <pre className="el-pre">{failure.traceback ?? failure.error}</pre>}
    </Panel>
  );
}
