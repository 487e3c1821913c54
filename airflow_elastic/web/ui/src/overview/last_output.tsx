// While ranks make no step: what one of them last printed, which often says what it waits for.
import { useSearchParams, Link } from "react-router-dom";
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { LogIndex, LogText, Overview } from "../api/types.ts";
import { chosen, type Place } from "../logs/choose.ts";
import { linesOf } from "../logs/lines.ts";
import { stripped } from "../format/ansi.ts";
import { roughly } from "../format/times.ts";
import { stillFor } from "../logs/choose.ts";
import { useServerNow } from "../parts/now.ts";
import { Panel } from "../parts/panel.tsx";
import { usePollInterval } from "../parts/settings.ts";
import { viewLink } from "../run/where.ts";

/** Ranks import and restore for a while, which is nothing to look at. */
const PATIENCE_SECONDS = 20;
/** Without a step for so long, ranks that have trained are worth a look. */
const STILL_SECONDS = 60;
const LINES = 8;
const BYTES = 4096;

export function LastOutput({ path, overview }: { path: string; overview: Overview }) {
  const now = useServerNow();
  const { state, starting, ranks = [], attempts } = overview.status;
  const attempt = attempts.at(-1)?.number ?? 1;
  if (starting) {
    if (now - starting.since < PATIENCE_SECONDS) return null;
    return <Output path={path} attempt={attempt} rank={null} title="No step yet" />;
  }
  const still = stillFor(ranks, now);
  if (state !== "running" || still === null || still.seconds < STILL_SECONDS) return null;
  return <Output path={path} attempt={attempt} rank={String(still.rank)} title={`No step for ${roughly(still.seconds)}`} />;
}

function Output({ path, attempt, rank, title }: { path: string; attempt: number; rank: string | null; title: string }) {
  const index = usePolled<LogIndex>(address(`/${path}/logs`), usePollInterval() * 3).document;
  const place = index ? chosen(index, String(attempt), rank) : null;
  return place && place.attempt === attempt ? <Tail path={path} place={place} title={title} /> : null;
}

function Tail({ path, place, title }: { path: string; place: Place; title: string }) {
  const [words] = useSearchParams();
  const { attempt, rank } = place;
  const url = address(`/${path}/logs/text`, { attempt, rank, offset: -BYTES, limit: BYTES });
  const text = usePolled<LogText>(url, usePollInterval()).document?.text ?? "";
  const lines = linesOf(text, false).slice(-LINES).map(stripped);
  if (lines.length === 0) return null;
  return (
    <Panel title={`${title}: what rank ${rank} printed last`} aside={<Link to={viewLink(words, "logs", { attempt, rank })}>Open the log</Link>}>
      <pre className="el-pre" tabIndex={0}>{lines.join("\n")}</pre>
    </Panel>
  );
}
