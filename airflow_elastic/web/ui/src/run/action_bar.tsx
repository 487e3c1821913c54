// The buttons for who may edit the DAG: scale, save, stop, exclude a machine. A checkpoint's are in its own row.
import { useState } from "react";
import type { Action, ActionName, Overview } from "../api/types.ts";
import { Button } from "../chakra.ts";
import { ConfirmAction } from "./confirm_action.tsx";

const BUTTONS: { name: ActionName; word: string }[] = [
  { name: "scale", word: "Scale" },
  { name: "save", word: "Save now" },
  { name: "stop", word: "Stop" },
];

interface Props {
  path: string;
  overview: Overview;
  onDone: () => void;
}

export function ActionBar({ path, overview, onDone }: Props) {
  const [asked, setAsked] = useState<Action | null>(null);
  const [said, setSaid] = useState<string | null>(null);
  if (!overview.permissions.edit || overview.status.ended_at !== null) return null;
  return (
    <>
      <div className="el-actions">
        {BUTTONS.map(({ name, word }) => {
          const action = overview.actions.find((known) => known.name === name);
          if (!action) return null;
          return (
            <Button
              key={name}
              size="xs"
              variant="outline"
              disabled={!action.allowed}
              title={action.allowed ? action.cost : (action.why_not ?? undefined)}
              onClick={() => setAsked(action)}
            >
              {word}
            </Button>
          );
        })}
      </div>
      {said && (
        <p className="el-said" role="status">
          {said}{" "}
          <button type="button" className="el-link" onClick={() => setSaid(null)}>
            Dismiss
          </button>
        </p>
      )}
      {asked && (
        <ConfirmAction
          path={path}
          action={asked}
          workers={overview.status.target_workers}
          onClose={() => setAsked(null)}
          onDone={(words) => {
            setAsked(null);
            setSaid(words);
            onDone();
          }}
        />
      )}
    </>
  );
}
