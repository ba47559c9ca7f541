// Process 1 of a job node: runs the commands that clients send, and reaps orphans.
#pragma once

namespace ppmr {

// `ppmr job init`, hidden: the agent starts it through runc. It takes the job's token from the
// environment variable PPMR_JOB_TOKEN and leaves it in kTokenFile for `ppmr job rsh`.
struct JobInit {
  int run();  // returns only after an error; the agent ends the job node by killing it
};

}  // namespace ppmr
