#pragma once
#include "tensor/recipe.h"
