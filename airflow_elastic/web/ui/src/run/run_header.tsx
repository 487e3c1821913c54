// What a person sees first: the state with its reason, how far it is, and what may be done.
import type { ReactNode } from "react";
import { Link } from "react-router-dom";
import type { Overview } from "../api/types.ts";
import { StateBadge } from "../parts/badge.tsx";
import { Copy } from "../parts/copy.tsx";
import { ActionBar } from "./action_bar.tsx";
import { ProgressBar } from "./progress_bar.tsx";

interface Props {
  path: string;
  overview: Overview;
  named: boolean;
  onDone: () => void;
  children: ReactNode;
}

export function RunHeader({ path, overview, named, onDone, children }: Props) {
  const { status, headline, healthy } = overview;
  return (
    <div className={`el-header el-health-${healthy}`}>
      {named && (
        <div className="el-name">
          <Link to="?">Elastic runs</Link>
          <span aria-hidden="true">/</span>
          <h1>{status.run.name}</h1>
          <code title="Where everything about the run is kept">{status.run.uri}</code>
          <Copy text={status.run.uri} label="Copy the address of the run" />
        </div>
      )}
      <div className="el-header-row">
        <StateBadge state={status.state} />
        <p className="el-headline">{headline}</p>
        {children}
        <ActionBar path={path} overview={overview} onDone={onDone} />
      </div>
      <ProgressBar overview={overview} />
    </div>
  );
}
