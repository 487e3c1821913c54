// Why it failed, or why the last attempt did: the reason, the traceback, the way to the log.
import { Link, useSearchParams } from "react-router-dom";
import type { Failure, Overview } from "../api/types.ts";
import { count, grouped } from "../format/numbers.ts";
import { quoted } from "../format/shell.ts";
import { lastLine } from "../logs/choose.ts";
import { Copy } from "../parts/copy.tsx";
import { Panel } from "../parts/panel.tsx";
import { useConfig } from "../parts/settings.ts";
import { viewLink } from "../run/where.ts";

/** The failure to show: that of a run that has failed, or of the attempt that has ended while none trains. */
export function failureToShow({ status }: Overview): { attempt: number; failure: Failure } | null {
  if (status.state === "running" || status.outcome === "succeeded" || status.outcome === "stopped") return null;
  for (const { number, failure } of status.attempts.toReversed()) {
    if (failure) return { attempt: number, failure };
  }
  return null;
}

/** How to go on once the cause is mended. */
function CarryOn({ overview }: { overview: Overview }) {
  const newest = overview.checkpoint.newest;
  const from = newest ? `from step ${grouped(newest.step)}` : "from the beginning, as there is no checkpoint";
  const alone = useConfig()?.mode === "standalone";
  const command = `airflow-elastic run --uri ${quoted(overview.status.run.uri)}`;
  return (
    <p className="el-carry-on">
      To go on {from}, mend the cause, then {alone ? "run" : "clear the task"}
      {alone && (
        <>
          {" "}
          <code>{command}</code> <Copy text={command} label="Copy the command" />
        </>
      )}
    </p>
  );
}

export function FailurePanel({ overview }: { overview: Overview }) {
  const [words] = useSearchParams();
  const shown = failureToShow(overview);
  if (!shown) return null;
  const { attempt, failure } = shown;
  const title = overview.status.outcome === "failed" ? "Why it failed" : `Why attempt ${attempt} ended`;
  const line = lastLine(failure.traceback ?? failure.error);
  const place = { attempt, ...(failure.rank != null ? { rank: failure.rank } : {}), ...(line ? { q: line } : {}) };
  const { restarts, ended_at: ended } = overview.status;
  return (
    <Panel
      title={title}
      level={overview.status.outcome === "failed" ? "error" : "warning"}
      aside={<Link to={viewLink(words, "logs", place)}>Open the log</Link>}
    >
      <p className="el-reason">
        <b>{failure.kind.charAt(0).toUpperCase() + failure.kind.slice(1)}:</b>{" "}
        {overview.attempts.find(({ number }) => number === attempt)?.headline ?? failure.reason}
        {failure.exit_code != null && <span className="el-muted"> · exit code {failure.exit_code}</span>}
        {ended !== null && <span className="el-muted"> · after {count(restarts.used, "restart")}</span>}
      </p>
      {(failure.traceback ?? failure.error) && <pre className="el-pre" tabIndex={0}>{failure.traceback ?? failure.error}</pre>}
      {overview.status.outcome === "failed" && <CarryOn overview={overview} />}
    </Panel>
  );
}
