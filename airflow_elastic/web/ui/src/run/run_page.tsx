// One run: its state and what may be done about it above, one of five views below.
import { useEffect, useMemo } from "react";
import { Link, useSearchParams } from "react-router-dom";
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { Overview } from "../api/types.ts";
import { CheckpointsView } from "../checkpoints/checkpoints_view.tsx";
import { EventsView } from "../events/events_view.tsx";
import { LogsView } from "../logs/logs_view.tsx";
import { OverviewView } from "../overview/overview_view.tsx";
import { Live } from "../parts/live.tsx";
import { ClockContext } from "../parts/now.ts";
import { Pending } from "../parts/panel.tsx";
import { PollContext, pollInterval, useConfig } from "../parts/settings.ts";
import { WorkersView } from "../workers/workers_view.tsx";
import { RunHeader } from "./run_header.tsx";
import { RunTabs } from "./run_tabs.tsx";
import { viewOf } from "./where.ts";

/** A run that has ended changes only when somebody opens it again. */
const ENDED_SLOWER = 10;

interface Props {
  path: string;
  /** Whether the page says the name of the run; inside Airflow the page around does. */
  named: boolean;
}

export function RunPage({ path, named }: Props) {
  const interval = pollInterval(useConfig());
  const polled = usePolled<Overview>(address(`/${path}`), interval);
  const overview = polled.document;
  const ended = overview?.status.ended_at != null;
  const [words] = useSearchParams();
  const view = viewOf(words.get("view"));
  useTitle(named, overview);

  const at = overview?.at ?? 0;
  const clock = useMemo(() => ({ server: at, ours: polled.sent }), [at, polled.sent]);
  if (!overview) {
    return (
      <>
        {named && <p className="el-name"><Link to="?">Elastic runs</Link></p>}
        <Pending trouble={polled.trouble} lines={8} />
      </>
    );
  }
  const shared = { path, overview };
  return (
    <ClockContext value={clock}>
    <PollContext value={ended ? interval * ENDED_SLOWER : interval}>
      <RunHeader path={path} overview={overview} named={named} onDone={polled.refresh}>
        <Live polled={polled} ended={ended} />
      </RunHeader>
      <RunTabs view={view} />
      <main className="el-view">
        {view === "overview" && <OverviewView {...shared} />}
        {view === "workers" && <WorkersView {...shared} />}
        {view === "events" && <EventsView {...shared} />}
        {view === "logs" && <LogsView {...shared} />}
        {view === "checkpoints" && <CheckpointsView {...shared} onDone={polled.refresh} />}
      </main>
    </PollContext>
    </ClockContext>
  );
}

function useTitle(named: boolean, overview: Overview | undefined): void {
  const title = overview ? `${overview.status.run.name}: ${overview.status.state}` : null;
  useEffect(() => {
    if (named && title) document.title = title;
  }, [named, title]);
}
