// Before anything is asked of a run: what it will cost, and what exactly is meant.
import { useState } from "react";
import { post } from "../api/client.ts";
import type { Action, ActionName } from "../api/types.ts";
import { Button, CloseButton, Dialog, Input, Portal } from "../chakra.ts";
import { grouped } from "../format/numbers.ts";

interface Props {
  path: string;
  action: Action;
  /** The workers wanted now, for scaling. */
  workers?: number;
  /** What the action is about, for those about a checkpoint. */
  step?: number;
  /** The same for a machine. */
  machine?: string;
  onClose: () => void;
  onDone: (words: string) => void;
}

const titles: Record<ActionName, (about: string) => string> = {
  scale: () => "Change the number of workers",
  save: () => "Save a checkpoint now",
  stop: () => "Save, then stop the run",
  pin: (about) => `Keep the checkpoint of step ${about}`,
  unpin: (about) => `No longer keep the checkpoint of step ${about}`,
  resume: (about) => `Go on from the checkpoint of step ${about}`,
  exclude: (about) => `Leave out the machine ${about}`,
};

const verbs: Record<ActionName, string> = {
  scale: "Scale",
  save: "Save",
  stop: "Stop the run",
  pin: "Pin",
  unpin: "Unpin",
  resume: "Resume from here",
  exclude: "Exclude",
};

const DANGEROUS = new Set<ActionName>(["stop", "resume", "exclude"]);

export function ConfirmAction({ path, action, workers = 1, step, machine, onClose, onDone }: Props) {
  const [wanted, setWanted] = useState(String(workers));
  const [busy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState<string | null>(null);
  const asks = action.name === "scale";
  const usable = !asks || (/^\d+$/.test(wanted.trim()) && Number(wanted) >= 1 && Number(wanted) !== workers);

  const send = async () => {
    setBusy(true);
    setRefusal(null);
    const body = asks ? { workers: Number(wanted) } : step !== undefined ? { step } : machine ? { machine } : {};
    try {
      onDone(await post(`/${path}/actions/${action.name}`, body));
    } catch (error) {
      setRefusal(error instanceof TypeError ? "The server does not answer. Nothing was asked." : (error as Error).message);
      setBusy(false);
    }
  };

  return (
    <Dialog.Root open onOpenChange={({ open }) => !open && onClose()} placement="center" size="sm">
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content>
            <form
              className="elastic-dialog"
              onSubmit={(event) => {
                event.preventDefault();
                if (usable && !busy) void send();
              }}
            >
              <Dialog.Header>
                <Dialog.Title>{titles[action.name](machine ?? grouped(step))}</Dialog.Title>
              </Dialog.Header>
              <Dialog.Body>
                {asks && (
                  <label className="el-field">
                    Workers
                    <Input
                      type="number"
                      inputMode="numeric"
                      min={1}
                      step={1}
                      value={wanted}
                      autoFocus
                      onChange={(event) => setWanted(event.target.value)}
                    />
                    <span className="el-muted">{workers} wanted now</span>
                  </label>
                )}
                <p className="el-cost">
                  <b>What it costs.</b> {action.cost}
                </p>
                {refusal && (
                  <p className="el-notice el-error" role="alert">
                    {refusal}
                  </p>
                )}
              </Dialog.Body>
              <Dialog.Footer>
                <Dialog.ActionTrigger asChild>
                  <Button variant="outline" size="sm">
                    Cancel
                  </Button>
                </Dialog.ActionTrigger>
                <Button
                  type="submit"
                  size="sm"
                  disabled={!usable}
                  loading={busy}
                  colorPalette={DANGEROUS.has(action.name) ? "red" : "blue"}
                >
                  {verbs[action.name]}
                </Button>
              </Dialog.Footer>
              <Dialog.CloseTrigger asChild>
                <CloseButton size="sm" aria-label="Close" />
              </Dialog.CloseTrigger>
            </form>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}
