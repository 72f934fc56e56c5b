#pragma once
// ModelFacts and parameters_text for front ends, which do not include plan/.
#include "plan/model_source.h"
