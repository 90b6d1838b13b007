package sched

// CheckPlan is for the tests outside of the package.
func CheckPlan(s Snapshot, p Plan) string { return checkPlan(s, p) }
