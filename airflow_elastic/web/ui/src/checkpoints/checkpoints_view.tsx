// Every checkpoint: what is safe, where it lies, and what may be done with it.
import { useState } from "react";
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { Action, CheckpointList, Overview } from "../api/types.ts";
import { bytes, count } from "../format/numbers.ts";
import { Empty, Notice, Panel, Pending } from "../parts/panel.tsx";
import { usePollInterval } from "../parts/settings.ts";
import { ConfirmAction } from "../run/confirm_action.tsx";
import { CheckpointRow } from "./checkpoint_row.tsx";

const SLOWER = 2;

interface Props {
  path: string;
  overview: Overview;
  onDone: () => void;
}

export function CheckpointsView({ path, overview, onDone }: Props) {
  const polled = usePolled<CheckpointList>(address(`/${path}/checkpoints`), usePollInterval() * SLOWER);
  const [asked, setAsked] = useState<{ action: Action; step: number } | null>(null);
  const [said, setSaid] = useState<string | null>(null);
  const found = polled.document?.checkpoints;
  if (!found) return <Pending trouble={polled.trouble} lines={6} />;
  const newestFirst = found.toSorted((a, b) => b.step - a.step);
  const metric = found.some(({ metric }) => metric !== null);
  const actions = overview.permissions.edit ? overview.actions : [];
  const all = found.reduce((sum, { bytes: size }) => sum + (size ?? 0), 0);
  return (
    <Panel
      title={count(found.length, "checkpoint")}
      aside={found.length > 0 ? <span className="el-muted">{bytes(all)} in all</span> : null}
    >
      {said && <Notice level="info">{said}</Notice>}
      {found.length === 0 && (
        <Empty>
          {overview.status.ended_at === null
            ? "No checkpoint yet: a failure now would lose all steps."
            : "The run has left no checkpoint."}
        </Empty>
      )}
      {found.length > 0 && (
        <div className="el-scroll" tabIndex={0} role="region" aria-label="Checkpoints">
          <table className="el-table">
            <thead>
              <tr>
                <th scope="col" className="el-num">Step</th>
                <th scope="col">Saved</th>
                <th scope="col" className="el-num">Size</th>
                <th scope="col">Kept in</th>
                <th scope="col" className="el-num">Attempt</th>
                <th scope="col">Why it was saved</th>
                {metric && <th scope="col" className="el-num">Metric</th>}
                <th scope="col">Verified</th>
                <th scope="col">Remarks</th>
                {actions.length > 0 && <th scope="col"><span className="el-hidden">Actions</span></th>}
              </tr>
            </thead>
            <tbody>
              {newestFirst.map((checkpoint) => (
                <CheckpointRow
                  key={checkpoint.step}
                  checkpoint={checkpoint}
                  metric={metric}
                  actions={actions}
                  onAsk={(action) => setAsked({ action, step: checkpoint.step })}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {asked && (
        <ConfirmAction
          path={path}
          action={asked.action}
          step={asked.step}
          onClose={() => setAsked(null)}
          onDone={(words) => {
            setAsked(null);
            setSaid(words);
            polled.refresh();
            onDone();
          }}
        />
      )}
    </Panel>
  );
}
