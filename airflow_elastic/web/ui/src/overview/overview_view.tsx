// Is it healthy, how did it get here, what would be lost: one page.
import type { Overview } from "../api/types.ts";
import { ChartStack } from "../charts/chart_stack.tsx";
import { Attempts } from "./attempts.tsx";
import { FailurePanel } from "./failure_panel.tsx";
import { Goodput } from "./goodput.tsx";
import { LastOutput } from "./last_output.tsx";
import { Notices } from "./notices.tsx";
import { Phases } from "./phases.tsx";
import { Proposals } from "./proposals.tsx";
import { Tiles } from "./tiles.tsx";

export function OverviewView({ path, overview }: { path: string; overview: Overview }) {
  return (
    <>
      <Notices overview={overview} />
      <FailurePanel overview={overview} />
      <LastOutput path={path} overview={overview} />
      <Tiles overview={overview} />
      <Proposals overview={overview} />
      <Goodput overview={overview} />
      <ChartStack path={path} overview={overview} />
      <Phases overview={overview} />
      <Attempts overview={overview} />
    </>
  );
}
