// What past runs proposed when the run was created, each with its evidence, and whether the run has taken it.
import type { Overview } from "../api/types.ts";
import { count } from "../format/numbers.ts";
import { Panel } from "../parts/panel.tsx";
import { evidence, proposalWords } from "./proposal_words.ts";

export function Proposals({ overview }: { overview: Overview }) {
  const { proposals = [] } = overview.status;
  if (proposals.length === 0) return null;
  const taken = proposals.filter((one) => one.taken).length;
  return (
    <Panel
      title={`Past runs: ${count(proposals.length, "proposal")}`}
      aside={<span className="el-muted">{taken === 0 ? "none is taken: they are for you" : `${taken} taken by this run`}</span>}
    >
      <ul className="el-attempts" tabIndex={0} aria-label="Proposals of past runs">
        {proposals.map((one) => (
          <li key={one.field} className={one.taken ? "el-cause-good" : ""}>
            <span className="el-attempt-words">
              {proposalWords(one)}
              <span className="el-muted">{evidence(one)}</span>
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
