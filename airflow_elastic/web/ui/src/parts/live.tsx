// Whether the page is live: a quiet dot while answers come, words as soon as they do not.
import { useEffect, useState } from "react";
import type { Polled } from "../api/polling.ts";
import { roughly } from "../format/times.ts";

const STALE_MS = 15_000;

export function Live({ polled, ended }: { polled: Pick<Polled<unknown>, "heard" | "trouble">; ended: boolean }) {
  const now = useNow(1000);
  const { heard, trouble } = polled;
  if (trouble) {
    const since = heard === null ? "" : ` What you see is ${roughly((now - heard) / 1000)} old.`;
    return (
      <span className="el-live el-live-off" role="status">
        {/[.!?]$/.test(trouble) ? trouble : `${trouble}.`}
        {since}
      </span>
    );
  }
  if (heard === null) return <span className="el-live">Loading</span>;
  if (ended) return null;
  const late = now - heard > STALE_MS;
  return (
    <span className={late ? "el-live el-live-off" : "el-live"} title="The page renews itself while you look at it">
      <i aria-hidden="true" />
      {late ? `No answer for ${roughly((now - heard) / 1000)}` : "Live"}
    </span>
  );
}

/** The time in milliseconds, renewed as often as asked while somebody looks. */
export function useNow(every: number): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}
